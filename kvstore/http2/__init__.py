"""A gRPC server over HTTP/2 on asyncio: what the node's API listens with.

- `call`: what a call is to the code that serves it, and what a method is;
- `status`: gRPC's status codes;
- `server`: the port, its connections, keep-alive, stopping;
- `connection`, `output`: one connection's state machine, without I/O: frames in, frames out, limits;
- `stream`, `incoming`: one call: messages as they arrive, replies as the client takes them;
- `grpc`: what gRPC says in headers: paths, time-outs, statuses, metadata;
- `headers`: HPACK, with whole header blocks remembered;
- `frames`, `errors`, `patience`: how frames look, how a connection ends, and how much a client may annoy.

A call that comes alone is the short way, and everything here is arranged around it: its request is in one
read, `Method.begin` starts the work from within `data_received`, a future's callback gives the reply, and all
replies of one round of the event loop leave in one write. The other ways, for messages in several frames, for
streams, and for clients that do not read, make what they need when they need it.

Whoever reaches the port may send anything. So everything that a client can make grow has a bound, which is
checked before anything is allocated; a wrong byte costs its connection or its stream, never the process.
"""
