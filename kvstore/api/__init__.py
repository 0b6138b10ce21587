"""The public API: gRPC servicers over a node's `Service`.

- `convert`: protobuf to the machine's types and back, within the limits;
- `errors`: what clients are told when something goes wrong;
- `kv`, `session`, `cluster`, `health`: the services;
- `server`: all of them on a port.
"""
