"""The wbkv client: the SDK and the command line."""
