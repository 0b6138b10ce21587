"""The public API, `wbkv.v1`: protobuf messages over a node's `Service`.

- `ports`, `facts`: what the API needs of a node;
- `convert`: protobuf to the machine's types, judged once, and results back;
- `errors`: exceptions to `wbkv.v1.Error` and gRPC status codes;
- `methods`: services as functions by method, and the `ApiContext` that they share;
- `kv`, `session`, `cluster`, `health`: the services;
- `reflection`: which services there are, for tools;
- `calls`: how every call on the port begins and ends;
- `server`: all services on a port, by `kvstore.http2`.

Where every call passes. A call comes in one of four ways: unary or streaming by gRPC (`calls`), inside a
session stream (`session`), or from the process of an embedded store (`kvstore.embedded`). Whichever way it
came, every operation on data goes through one object: `ApiContext.service`. To check a permission on every
operation, wrap the `Service` there. The caller's credentials are in the metadata of its `Call`; `Calls.begin`
sees it when a call, a stream or a session begins: put the caller into a context variable there, each time,
which the tasks of the call inherit. `Cluster` and `Health` read `ApiContext.facts`, and no data.
"""
