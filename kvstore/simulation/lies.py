"""A node that tells other nodes what no correct one says, beside what it does correctly.

It is a member, authenticated, and speaks for its own replicas only: that is what authentication leaves. Its
lies are those that docs/divergence.md, 19, promises to survive: memberships that are not the next step,
ballots out of reach, deliveries and snapshots that were not asked for, HANDOVER of a ballot that it does not
lead, votes for no message, and what it has said itself in ballots that have ended. What a correct member in
its place could say, and is believed (its own votes, watermarks, and what it orders as a leader), it says
truly.

A lie costs the connection that it came by, and nothing else: all checkers hold for all groups, and everything
completes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kvstore.machine.state import Vote
from kvstore.node.snapshots import encode_checkpoint
from kvstore.store.messages import Votes
from kvstore.wire.frames import Envelope
from kvstore.wire.messages import SnapshotPiece
from multicast import messages as msg
from multicast.durable import Checkpoint
from multicast.membership import Configuration, Membership
from multicast.types import (
    NUMBER_JUMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    ReplicaId,
    Timestamp,
    digest_of,
    time_of,
    timestamp,
)

if TYPE_CHECKING:
    from kvstore.simulation.nodes import SimMachine
    from kvstore.simulation.store import StoreCluster

ABSURD: Final = (2**63 - 1, 1 << 62, 1 << 46)
"""Numbers of ballots that are out of reach for the whole run. Lies move what a replica expects, by a jump in
a time-out, and within reach a member is believed: an empty NEW_STATE would replace what was accepted."""
EVERY_S: Final = 0.08
"""Between two lies."""
STALE: Final = 0.15
"""The share of lies that were true once."""
REMEMBERED: Final = 400
"""Frames of its own that a stale node repeats."""
NOBODY: Final = ClientId(0xBAD)
"""A client that there is not."""


class LyingNode:
    """The lies of one node. It begins to lie at once, and ends when all faults do."""

    def __init__(self, simulation: StoreCluster, number: int, rng: random.Random) -> None:
        self.number = number
        self.told = 0
        """Lies that were told."""
        self.refused = 0
        """Frames for which a node has closed the connection."""
        self._simulation = simulation
        self._rng = rng
        self._said: deque[tuple[ReplicaId, ReplicaId, Any]] = deque(maxlen=REMEMBERED)
        self._lies: Sequence[Callable[[ReplicaId, ReplicaId], Any]] = (
            self._members, self._ballot, self._leap, self._snapshot, self._deliveries, self._hand_over,
            self._votes,
        )  # fmt: skip
        simulation.loop.at(EVERY_S, self._go_on)

    def _go_on(self) -> None:
        simulation = self._simulation
        if simulation.healed:
            return
        machine = simulation.machines.get(self.number)
        if machine is not None and machine.node is not None and machine.reads:
            self._lie(machine)
        simulation.loop.at(simulation.loop.now + self._rng.expovariate(1 / EVERY_S), self._go_on)

    def heard(self, envelopes: Sequence[Envelope]) -> None:
        """Remember what the node says by itself."""
        for sender, receiver, messages in envelopes:
            if isinstance(sender, ReplicaId) and isinstance(receiver, ReplicaId):
                self._said.extend((sender, receiver, each) for each in messages if hasattr(each, "ballot"))

    def arriving(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Return what arrives: not a forged delivery if its receiver has asked its sender while it was under
        way, and believes that member now.
        """
        found: list[Envelope] = []
        for sender, receiver, messages in envelopes:
            view = self._simulation.hosts.get(receiver) if isinstance(receiver, ReplicaId) else None
            replica: Any = None if view is None else view.replica
            believed = replica is not None and sender in replica.asked
            kept = [each for each in messages if not (believed and _is_forged(each))]
            found.append((sender, receiver, kept))
        return found

    def _lie(self, machine: SimMachine) -> None:
        rng, simulation = self._rng, self._simulation
        others = [m for number, m in simulation.machines.items() if number != self.number and m.node]
        if not others:
            return
        target = rng.choice(others)
        receiver = rng.choice(target.replicas)
        same = [me for me in machine.replicas if me.group == receiver.group]
        sender = rng.choice(same if same and rng.random() < 0.8 else machine.replicas)
        if rng.random() < STALE:
            found = self._stale()
        else:
            lie = rng.choice(self._lies)(sender, receiver)
            found = None if lie is None else (sender, receiver, [lie])
        if found is not None:
            self.told += 1
            machine.send(simulation.node_of(found[1]), [found])

    # What it says

    def _replica(self, me: ReplicaId) -> Any:
        return self._simulation.hosts[me].replica

    def _stale(self) -> tuple[ReplicaId, ReplicaId, list[Any]] | None:
        """Something of a ballot that its receiver has left behind."""
        for _ in range(10 if self._said else 0):
            sender, receiver, message = self._rng.choice(self._said)
            host = self._simulation.hosts.get(receiver)
            replica: Any = None if host is None else host.replica
            own = sender.group == receiver.group
            if own and replica is not None and message.ballot < replica.cballot:
                return sender, receiver, [message]
        return None

    def _members(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """Other disks than the members have, as the next configuration of another group, or much later."""
        rng = self._rng
        group = rng.choice(self._simulation.topology.groups)
        known = self._simulation.topology.membership(group)
        members = [ReplicaId(group, m.number, rng.choice((7, 8, 9))) for m in known.current.members]
        number = known.current.number + rng.choice((2, 5, 1 << 60))
        return msg.Members(Membership(Configuration(group, number, members, [""] * len(members))))

    def _ballot(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """A ballot that is out of reach, in any message that names one."""
        ballot = Ballot(self._rng.choice(ABSURD), sender, self._rng.choice((0, 1)))
        return self._rng.choice((
            msg.PreVote(ballot), msg.NewLeader(ballot), msg.Heartbeat(ballot, timestamp(0, sender.group), ()),
            msg.Hint(sender.group, ballot), msg.HeartbeatAck(ballot, ballot, timestamp(0, sender.group)),
            msg.NewState(ballot, 0, msg.StatePart(1, 0, 1), ()), msg.HandOver(ballot),
        ))  # fmt: skip

    def _leap(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """As far as it may, as often as it can."""
        replica = self._replica(receiver)
        if replica is None or sender.group != receiver.group:
            return None
        return msg.Hint(sender.group, Ballot(replica.highest_number + NUMBER_JUMP, sender, 0))

    def _ahead(self, group: GroupId) -> Timestamp:
        return timestamp(self._simulation.last_change() // 1024 + (1 << 30), group)

    def _snapshot(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """An empty state from far ahead, whole."""
        ahead = self._ahead(receiver.group)
        data = encode_checkpoint(Checkpoint(position=ahead, executed=ahead))
        return SnapshotPiece(self._rng.choice((0, 1, 2**62)), 0, True, True, data)  # noqa: FBT003 - both are so

    def _deliveries(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """What was never ordered, as if it followed the last delivery."""
        replica = self._replica(receiver)
        if replica is None or replica.asked:
            return None  # it may have asked this very member, which it then believes; see `arriving`
        group, last = receiver.group, replica.last_delivered
        mid = MessageId(NOBODY, 1, digest_of((group,), b"never ordered"))
        at = timestamp(time_of(last) + 1, group)
        forged = msg.Delivery(mid, (group,), b"never ordered", 1, at, at, last, mismatch=False)
        return msg.Deliveries((forged,), at)

    def _hand_over(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """Ask a member to lead instead of another."""
        replica = self._replica(receiver)
        if replica is None or replica.cballot.leader == sender:
            return None
        return msg.HandOver(self._rng.choice((replica.cballot, replica.cballot._replace(leader=sender))))

    def _votes(self, sender: ReplicaId, receiver: ReplicaId) -> Any:
        """Votes and outcomes of messages that there are not, some of which contradict each other."""
        position = Timestamp(self._ahead(sender.group) + self._rng.choice((0, 1024)))
        vote = Vote(position, MessageId(NOBODY, 1, 0), sender.group, self._rng.random() < 0.5)
        return Votes((vote,), ())


def _is_forged(message: Any) -> bool:
    return isinstance(message, msg.Deliveries) and NOBODY in [each.mid.client for each in message.deliveries]
