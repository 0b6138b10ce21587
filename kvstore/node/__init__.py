"""A node: replicas of any number of groups on one log, one state and one network, without I/O of its own."""
