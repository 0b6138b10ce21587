"""The `wbkv` command (`main`), and the subcommands of every install, which are clients of a cluster's API."""
