"""Which objects are read, in which order, and to which partition."""
