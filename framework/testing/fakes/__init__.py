"""In-memory fakes for tests: a store, an Iggy server, a producer and a clock."""
