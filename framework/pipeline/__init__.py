"""The way from an object to Iggy: object reader, bounded queue, sender, error budget, dead letters."""
