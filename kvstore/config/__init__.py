"""The configuration of a cluster. Read `model` first.

`addresses` (names and addresses of nodes), `checks` (what a configuration may say), `model` (the
configuration and what follows from it), `toml` (its file).
"""
