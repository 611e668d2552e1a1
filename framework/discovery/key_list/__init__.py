"""Objects that a supplied list of keys or an S3 Inventory names, in place of a listing."""
