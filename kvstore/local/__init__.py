"""Clusters on this machine. Read `cluster` first.

`folder` (the folder of a cluster and its lock), `disk` (create disks), `supervise` (keep processes running),
`status` (ask nodes for their status), `probe` (wait until a node serves), `cluster` (all of these together).
"""
