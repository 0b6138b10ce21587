"""The public API: gRPC servicers over a node's `Service`.

- `ports`, `facts`: what it needs of a node;
- `convert`: protobuf to the machine's types and back, within the limits;
- `errors`: what clients are told when something goes wrong;
- `methods`: services as functions, and what they have in common;
- `kv`, `session`, `cluster`, `health`: the services;
- `calls`: how every call by gRPC begins and ends;
- `server`: all of them on a port.
"""
