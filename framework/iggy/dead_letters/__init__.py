"""The dead letter topic: how letters are written, read again and marked."""
