"""Sabotages of what protects replicas against peers that are wrong (departure 19). See `mutants`."""

from __future__ import annotations

import math

from multicast import messages as msg
from multicast import types as t
from multicast.claims import MembershipClaims
from multicast.membership import Membership
from multicast.protocol import Start
from tests.sim.mutants import Shared


class BelievesAnyMembers(Shared):
    """A membership is believed, whichever process tells it."""

    def on_members(self, sender: t.Process, message: msg.Members) -> None:
        self._learn(message.membership)


class _OneVoice(MembershipClaims):
    def believes(self, known: Membership, told: Membership, teller: t.Process) -> bool:
        return super().believes(known, told, teller) or teller in known.everyone


class BelievesAJumpFromOneMember(Shared):
    """One member is believed, however far the membership is from the known one."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.claims = _OneVoice()


class _AnyTeller(MembershipClaims):
    def believes(self, known: Membership, told: Membership, teller: t.Process) -> bool:
        return super().believes(known, told, known.current.members[0])


class BelievesStrangers(Shared):
    """The next step is believed of a process that is not a member."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.claims = _AnyTeller()


class AnyBallotNumber(Shared):
    """A ballot may have any number."""

    def check_number(self, group: t.GroupId, ballot: t.Ballot) -> None:
        pass


class JumpsAtAnyRate(Shared):
    """A ballot's number may jump again at once."""

    def check_number(self, group: t.GroupId, ballot: t.Ballot) -> None:
        self.jump_at[group] = -math.inf
        super().check_number(group, ballot)


class TakesAnySnapshot(Shared):
    """A snapshot need not have been asked for."""

    def awaits(self, source: t.ReplicaId, number: int, now: float) -> bool:
        return True


class TakesASnapshotOfAnyMember(Shared):
    """A snapshot was asked for, but of another member, or long ago."""

    def awaits(self, source: t.ReplicaId, number: int, now: float) -> bool:
        return bool(self.asked) or super().awaits(source, number, now)


class HandsOverToAnyone(Shared):
    """A member stands when any other asks for it."""

    def on_hand_over(self, sender: t.Process, message: msg.HandOver) -> None:
        self.recover()


class TakesAnyDeliveries(Shared):
    """Deliveries need not have been asked for."""

    def _has_asked(self, source: t.ReplicaId) -> bool:
        return True
