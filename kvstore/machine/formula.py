"""Conditions that are combined by *any* and *all*: how a message has them, and what is known of their truth.

A transaction has its conditions as a flat tuple. Its formula combines some of them: a list of nodes whose
members are conditions, by their indexes, or earlier nodes, which have the numbers after the conditions. So a
formula cannot contain itself, and is read without recursion. What is no member of a node is a *root*; all
roots must hold.

A group knows the truth of its own conditions, and learns the others' by votes. Every group evaluates the same
formula by Kleene's rules, in which a value that is not known yet is None: what follows from some of the votes
is what follows from all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvstore.machine.data import Data

FORMULA_DEPTH: Final = 8
"""How deeply any and all may be nested. A constant: all replicas must agree on it."""


class Combined(Data, frozen=True):
    """A node of a formula: whether any of its members holds, or all of them do."""

    any: bool
    members: tuple[int, ...]


def check_formula(conditions: int, nodes: Sequence[Combined]) -> None:
    """Raise `ValueError` unless nodes combine conditions, or nodes before them, each at most once, and are
    not nested too deeply.
    """
    depths = [0] * conditions
    used: set[int] = set()
    for node in nodes:
        if not node.members:
            raise ValueError("any and all need at least one condition")
        for member in node.members:
            if not 0 <= member < len(depths) or member in used:
                raise ValueError(f"the formula has no condition {member} that is not combined yet")
            used.add(member)
        depths.append(1 + max(depths[member] for member in node.members))
        if depths[-1] > FORMULA_DEPTH:
            raise ValueError(f"conditions are nested deeper than {FORMULA_DEPTH} levels; flatten the formula")


def roots_of(conditions: int, nodes: Sequence[Combined]) -> list[int]:
    """Return the numbers of what all must hold, in the order of the conditions that they begin with."""
    first = list(range(conditions))
    for node in nodes:
        first.append(min([first[member] for member in node.members]))
    used = {member for node in nodes for member in node.members}
    return sorted((number for number in range(len(first)) if number not in used), key=first.__getitem__)


def evaluate_formula(values: list[bool | None], nodes: Sequence[Combined]) -> list[bool | None]:
    """Return the values of the conditions and, after them, of the nodes. None is not known yet."""
    values = list(values)
    for node in nodes:
        members = [values[member] for member in node.members]
        decides = node.any  # one member that holds decides any, one that does not decides all
        if decides in members:
            values.append(decides)
        else:
            values.append(None if None in members else not decides)
    return values


def all_hold(values: list[bool | None], nodes: Sequence[Combined]) -> bool | None:
    """Return whether all roots hold, by the values of the conditions; None if that is not known yet."""
    found = evaluate_formula(values, nodes)
    roots = [found[root] for root in roots_of(len(values), nodes)]
    return False if False in roots else None if None in roots else True
