"""Claims: which memberships are believed, and from whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.claims import CLAIMS_MAX, MembershipClaims, is_next
from multicast.errors import PeerViolation
from multicast.membership import Configuration, Membership
from multicast.types import ClientId, GroupId, ReplicaId
from tests.unit.multicast.replicas import EXAMPLES

G0 = GroupId(0)
R = [ReplicaId(G0, number, number + 1) for number in range(3)]
NEW = ReplicaId(G0, 2, 0xA)
KNOWN = Membership(Configuration(G0, 0, R))
CHANGE = KNOWN.replace(R[2], NEW, "n4@elsewhere:1")
COMPLETE = CHANGE.completed()
SECOND = COMPLETE.replace(R[1], ReplicaId(G0, 1, 0xB), "").completed()
THIRD = SECOND.replace(R[0], ReplicaId(G0, 0, 0xC), "").completed()
STRANGER = ReplicaId(G0, 1, 0xF)
OTHER_GROUP = ReplicaId(GroupId(1), 0, 1)


def forged(*incarnations: int, number: int = 1) -> Membership:
    return Membership(Configuration(G0, number, [ReplicaId(G0, i, n) for i, n in enumerate(incarnations)]))


@pytest.mark.parametrize("told", [CHANGE, COMPLETE])
def test_the_next_step_is_believed_from_any_known_member_and_from_no_other_process(told: Membership) -> None:
    for member in R:
        assert MembershipClaims().believes(KNOWN, told, member)
    for teller in (NEW, STRANGER, OTHER_GROUP, ClientId(5)):
        assert not MembershipClaims().believes(KNOWN, told, teller)


def test_that_a_change_is_complete_is_believed_from_members_of_both_configurations() -> None:
    for teller in (*R, NEW):
        assert MembershipClaims().believes(CHANGE, COMPLETE, teller)
    assert not MembershipClaims().believes(CHANGE, COMPLETE, STRANGER)


def test_a_jump_needs_a_quorum_of_either_configuration() -> None:
    claims = MembershipClaims()
    assert not claims.believes(KNOWN, SECOND, R[0])
    assert not claims.believes(KNOWN, SECOND, R[0]), "one member is one voice"
    assert not claims.believes(KNOWN, SECOND, STRANGER)
    assert not claims.believes(KNOWN, SECOND, OTHER_GROUP)
    assert claims.believes(KNOWN, SECOND, NEW), "R0 and NEW are a quorum of the new configuration"
    assert not claims.believes(KNOWN, THIRD, R[2])
    assert claims.believes(KNOWN, THIRD, R[1]), "R1 and R2 are a quorum of the known one"


def test_voices_for_different_claims_do_not_add_up() -> None:
    claims = MembershipClaims()
    assert not claims.believes(KNOWN, SECOND, R[0])
    assert not claims.believes(KNOWN, THIRD, R[1])
    assert not claims.believes(KNOWN, forged(1, 2, 9, number=7), R[2])


@pytest.mark.parametrize(
    "told",
    [
        Membership(Configuration(G0, 1, [R[0]])),
        Membership(Configuration(G0, 1, [*R, ReplicaId(G0, 3, 4), ReplicaId(G0, 4, 5)])),
        Membership(Configuration(G0, 1, [R[1], R[0], R[2]])),
        Membership(Configuration(G0, 1, [ReplicaId(G0, n, 9) for n in range(3)])),
        Membership(Configuration(G0, 5, [R[0], R[1], ReplicaId(G0, 7, 9)])),
    ],
    ids=["fewer", "more", "another order", "one disk", "another number"],
)
def test_what_no_change_can_lead_to_is_a_violation(told: Membership) -> None:
    for teller in (*R, STRANGER):
        with pytest.raises(PeerViolation, match="cannot follow"):
            MembershipClaims().believes(KNOWN, told, teller)


def test_a_step_that_replaces_two_members_is_not_the_next() -> None:
    both = forged(1, 8, 9)
    assert not is_next(KNOWN, both)
    assert not MembershipClaims().believes(KNOWN, both, R[0])


def test_outsiders_never_convince() -> None:
    """A forged configuration of outsiders, told by a member and by all but one of the outsiders' voices."""
    claims = MembershipClaims()
    outsiders = forged(0x70, 0x71, 0x72, number=9)
    for teller in (R[0], outsiders.current.members[0], STRANGER, R[0]):
        assert not claims.believes(KNOWN, outsiders, teller)


@EXAMPLES
@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([R[0], NEW, STRANGER])), max_size=60))
def test_claims_are_bounded_and_one_member_alone_never_convinces(told: list[tuple[int, ReplicaId]]) -> None:
    claims = MembershipClaims()
    for number, teller in told:
        assert not claims.believes(KNOWN, forged(1, 0x20, 0x30, number=number + 1), teller)
        assert len(claims._told[G0]) <= CLAIMS_MAX
