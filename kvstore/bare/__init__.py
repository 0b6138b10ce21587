"""Bare multicast: a node's simplest application, and its client, for tests and comparisons."""
