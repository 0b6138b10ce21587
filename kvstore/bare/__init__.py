"""Bare multicast, without a store: `application` answers clients with positions, `client` multicasts."""
