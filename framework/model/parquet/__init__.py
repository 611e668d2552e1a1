"""Limits of what reading Parquet takes: formats and lists of keys read files through `pages.WatchedFile`."""
