"""What carries a client's calls: gRPC, with threads or in an event loop, or a store in the same process."""
