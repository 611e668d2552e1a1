"""Real servers for tests and the demo: SeaweedFS, fake-gcs-server, and ports for them."""
