"""In-memory fakes for tests: a store and an Iggy server."""
