"""The public API: gRPC servicers over a node's `Service`.

- `ports`, `facts`: what it needs of a node;
- `convert`: protobuf to the machine's types and back, within the limits;
- `errors`: what clients are told when something goes wrong;
- `calls`: how every call begins and ends;
- `kv`, `session`, `cluster`, `health`: the services;
- `server`: all of them on a port.
"""
