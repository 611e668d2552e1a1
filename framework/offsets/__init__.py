"""Storage of positions: the manager, its table, the watermark and its tracker, listing hints, reset."""
