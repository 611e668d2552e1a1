"""The one door to Iggy: address, client, wire, producer, log of positions, recovery, and the embedded server."""
