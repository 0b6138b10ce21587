"""The `wbkv` command (`main`), and the subcommands that every install has: clients of a cluster's API."""
