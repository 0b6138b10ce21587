"""A node as a process: the event loop, the disk and the network around `kvstore.node.loop`."""
