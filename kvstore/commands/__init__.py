"""The commands that an install of the server adds to `wbkv`."""
