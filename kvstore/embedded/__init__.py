"""A store inside another process, without a network: `wbkv.open`.

- `store`: opens a folder, runs a cluster of one node in a thread of its own, and offers the API's methods;
- `loop_bridge`: calls from any thread into that thread's event loop, and results and streams back.
"""
