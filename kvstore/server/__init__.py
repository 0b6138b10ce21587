"""A running node: `engine` is a node in an event loop, on its disk; `process` puts it on the network."""
