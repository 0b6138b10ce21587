"""The store: transactions ordered by atomic multicast, applied on delivery."""
