"""Typed configuration: options declared once, read from TOML, checked all at once, documented from the same place."""
