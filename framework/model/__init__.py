"""Values: objects, batches, positions, splits, key ranges, message ids."""
