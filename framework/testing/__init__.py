"""For authors of sources: a conformance kit, an in-memory store, a clock, faults, and a local S3 server."""
