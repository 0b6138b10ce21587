"""Recordings of what a client does: histories for `wbkv check`, and traces for `wbkv pipeline`."""
