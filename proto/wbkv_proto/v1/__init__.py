"""The public API: `wbkv.v1`."""
