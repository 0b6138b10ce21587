"""The errors of the library, by whose fault they are: the caller's, a peer's, or our own."""

from __future__ import annotations

from multicast.types import GroupId


class MulticastError(Exception):
    """Base of every error this package raises."""


class InvalidArgument(MulticastError, ValueError):
    """The caller passed an invalid argument, which the message names. Nothing has changed."""


class PeerViolation(MulticastError):
    """A message that no correct process sends, or from an unknown sender. Nothing has changed."""


class UnknownConfiguration(PeerViolation):
    """A ballot of an unknown configuration. Its sender knows the configuration and can be asked."""

    def __init__(self, group: int, number: int) -> None:
        super().__init__(f"unknown configuration {number} of group {group}")
        self.group = GroupId(group)


class InvariantBroken(MulticastError):
    """This replica's own state is inconsistent. It must stop: going on would only spread the damage."""
