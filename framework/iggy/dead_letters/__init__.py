"""The dead letter topic: writing, reading and marking dead letters."""
