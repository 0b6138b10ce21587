"""What can go wrong, by whose fault it is."""

from __future__ import annotations


class MulticastError(Exception):
    """Base of every error this package raises."""


class InvalidArgument(MulticastError, ValueError):
    """The caller passed something that can never work; the message names it. Nothing has changed."""


class PeerViolation(MulticastError):
    """A message that no correct process sends, or from nobody we know. Nothing has changed."""


class InvariantBroken(MulticastError):
    """This replica's own state is wrong. It must stop: going on could only spread the damage."""
