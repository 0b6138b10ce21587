"""What can go wrong, by whose fault it is."""

from __future__ import annotations

from multicast.types import GroupId


class MulticastError(Exception):
    """Base of every error this package raises."""


class InvalidArgument(MulticastError, ValueError):
    """The caller passed something that can never work; the message names it. Nothing has changed."""


class PeerViolation(MulticastError):
    """A message that no correct process sends, or from nobody we know. Nothing has changed."""


class UnknownConfiguration(PeerViolation):
    """A ballot of a configuration we have not heard of. Whoever speaks of it knows it: ask."""

    def __init__(self, group: int, number: int) -> None:
        super().__init__(f"unknown configuration {number} of group {group}")
        self.group = GroupId(group)


class InvariantBroken(MulticastError):
    """This replica's own state is wrong. It must stop: going on could only spread the damage."""
