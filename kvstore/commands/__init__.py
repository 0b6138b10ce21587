"""What an install of the server adds to the `wbkv` command."""
