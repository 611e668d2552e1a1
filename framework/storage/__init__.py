"""Access to object stores: retries, resuming streams, checks, error messages."""
