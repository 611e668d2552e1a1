"""The way from an object to Iggy: object reader, bounded queue, sender, error policy, dead letters."""
