"""A store inside another process, without a network."""
