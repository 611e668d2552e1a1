"""Engines: the local engine, with one process or several. Spark's engine has its own package."""
