"""The entry point of `wbkv bench`, under a name of its own.

The wheel has neither this nor `benchmarks`: a user's own package `benchmarks` is not taken for ours.
"""

from benchmarks.command import command

__all__ = ["command"]
