"""Links carry a client's calls: by gRPC, with threads or in an event loop, or to an embedded store."""
