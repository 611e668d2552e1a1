"""What stands in for the real thing in tests: a store, an Iggy server, a producer and a clock, in memory."""
