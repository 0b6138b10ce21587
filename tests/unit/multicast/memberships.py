"""Memberships, for tests of whatever carries them."""

from __future__ import annotations

from hypothesis import strategies as st

from multicast.membership import Configuration, Membership
from multicast.types import GROUPS_MAX, GroupId, ReplicaId

_INCARNATIONS = st.integers(0, 2**64 - 1)
_PLACES = st.text(max_size=20)


@st.composite
def memberships(draw: st.DrawFn, groups: st.SearchStrategy[GroupId] | None = None) -> Membership:
    """Any membership: of a group that never changed, in the middle of a change, or after one."""
    group = draw(groups if groups is not None else st.integers(0, GROUPS_MAX - 1).map(GroupId))
    size = draw(st.sampled_from([1, 3, 5]))
    numbers = draw(st.lists(st.integers(0, 2**63 - 1), min_size=size, max_size=size, unique=True))
    members = [ReplicaId(group, number, draw(_INCARNATIONS)) for number in numbers]
    places = [draw(_PLACES) for _ in members]
    first = Membership(Configuration(group, draw(st.integers(0, 2**62)), members, places))
    old = draw(st.sampled_from(members))
    change = first.replace(old, old._replace(incarnation=draw(_INCARNATIONS)), draw(_PLACES))
    return draw(st.sampled_from([first, change, change.completed()]))
