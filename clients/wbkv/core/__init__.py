"""What both clients share: how calls are made, repeated and routed, without any I/O of its own."""
