"""Types of arguments that several commands have."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Parse a number of at least one."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number
