"""The key-value store as a node's application: its partitions, its gateway, and what is committed of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kvstore.config.history import KeepHistory
from kvstore.machine import Limits, Machine, MachineState, Placement, Store
from kvstore.machine.codec import RequestDecoder, decode_machine_state, encode_machine_state
from kvstore.machine.commands import Compact, Expire
from kvstore.machine.request import Range
from kvstore.machine.slices import RUN_ROWS
from kvstore.node.ports import Outgoing
from kvstore.storage.errors import DamagedRow
from kvstore.storage.ports import GroupCheckpoint, Origin, StoreDisk
from kvstore.store.chores import Chores
from kvstore.store.compactor import Compactor
from kvstore.store.comparison import Comparison
from kvstore.store.errors import Overloaded
from kvstore.store.gateway import Gateway
from kvstore.store.messages import STORE_MESSAGES, UNHURRIED, Results
from kvstore.store.partition import Partition
from kvstore.store.replica_view import ReplicaView
from kvstore.store.retention import EXPIRE_S
from kvstore.store.scrubber import Scrubber
from kvstore.store.share import Share
from multicast.durable import Checkpoint
from multicast.errors import PeerViolation
from multicast.messages import Delivery, Multicast
from multicast.protocol import Protocol
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, ClientId, GroupId, Process, ReplicaId, Timestamp, timestamp


class StoreApplication:
    """See `kvstore.node.ports.Application`."""

    messages = STORE_MESSAGES
    unhurried = UNHURRIED
    slice_rows = RUN_ROWS

    def __init__(
        self,
        disk: StoreDisk,
        topology: Topology,
        placement: Placement,
        *,
        me: ClientId,
        limits: Limits,
        now: Callable[[], float],
        rng: random.Random,
        work_clock: Callable[[], float] | None = None,
        scrub_s: float = 0.0,
        keep: KeepHistory | None = None,
        used: Callable[[], int] = int,
    ) -> None:
        """`placement` is the cluster's first map: a group that has a state uses its own. `work_clock`
        measures how long the process works at something. All rows are read once in `scrub_s` seconds, or
        never. `keep` says how much history leaders keep, by default all; `used` returns the bytes of the
        node's state.
        """
        self._disk = disk
        self._placement = placement
        self._limits = limits
        self._now = now
        self._replicas: dict[GroupId, ReplicaView] = {}
        self._partitions: dict[GroupId, Partition] = {}
        self._local: dict[GroupId, ReplicaId] = {}
        self._woken: set[GroupId] = set()
        """Groups with input since the last turn."""
        self._wakes: dict[GroupId, float] = {}
        """When the partitions' turns are due, if they get no input, and the first of these times."""
        self._partitions_at = 0.0
        self._long: set[GroupId] = set()
        """Groups with long work: whose turn is next changes with the turns of the others."""
        self._installed: dict[GroupId, GroupCheckpoint] = {}
        self._followed: dict[GroupId, Ballot] = {}
        """The ballots that the gateway knows of."""
        self.damaged: dict[GroupId, DamagedRow] = {}
        """Groups whose state was found damaged, until the node takes them out."""
        self._saved: dict[GroupId, Timestamp] = {}
        """The executed position at the last commit."""
        self.gateway = Gateway(
            me,
            topology,
            placement,
            limits=limits,
            local=self._local,
            clock=self._clock,
            rng=rng,
            monotonic=now,
            count=self._count,
        )
        self._decoder = RequestDecoder()
        self.processes = (me,)
        self.scrubber = Scrubber(disk, scrub_s, now())
        self._compare_s = scrub_s
        self.wake_at = 0.0
        self._expire_at = now() + EXPIRE_S
        self._compactor = Compactor(keep or KeepHistory(), used)
        self._compact_at = now() + self._compactor.look_s
        self._chores = Chores(work_clock)
        self._share = Share(now, work_clock)
        """Of the node's time, for long work of all partitions."""

    def _count(self, group: GroupId, asked: Range, most: int) -> int | None:
        """Count the rows of a range, up to a number; None if this node does not have them."""
        found = self._partitions.get(group)
        if found is None or group in self.damaged:
            return None
        try:
            marks = found.machine.versions.marks(asked, most, most)
        except DamagedRow:
            return None
        return most * len(marks.keys) + marks.rest

    def under_way(self, now: float) -> int:
        """Return how many answers the gateway waits for."""
        return self.gateway.under_way(now)

    def _clock(self) -> int:
        """Return the highest clock of this node's replicas."""
        return max((replica.clock for replica in self._replicas.values()), default=0)

    @property
    def groups(self) -> Collection[GroupId]:
        """The groups that this node has replicas of."""
        return self._replicas.keys()

    # Start and snapshots

    def load(self, group: GroupId) -> Checkpoint:
        """Return the ordering's checkpoint of what is durable."""
        return self._disk.load(group)

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget a group's replica and its state, which is damaged."""
        known: dict[GroupId, Any]
        for known in (
            self._replicas, self._local, self._partitions, self._installed, self._saved, self._wakes,
        ):  # fmt: skip
            known.pop(group, None)
        self._woken.discard(group)
        self._long.discard(group)
        self._disk.drop(group, reason)

    def executed(self, group: GroupId) -> Timestamp:
        """Return the position up to which everything is executed, committed or not."""
        return self.partition(group).executed

    def host(self, replica: Protocol) -> None:
        """Add a replica, and open its partition."""
        if not isinstance(replica, ReplicaView):
            raise TypeError(f"{type(replica).__name__} cannot order a store: it is not a ReplicaView")
        self._replicas[replica.me.group] = replica
        self._local[replica.me.group] = replica.me
        self.partition(replica.me.group)
        self._woken.add(replica.me.group)

    def partition(self, group: GroupId) -> Partition:
        """Return the group's partition. It is rebuilt after the replica has installed a snapshot."""
        found = self._partitions.get(group)
        if found is None:
            saved, maps = self._disk.open(group)
            saved = self._installed.pop(group, saved)
            state = (
                MachineState(self._placement) if saved is None else decode_machine_state(saved.machine_state)
            )
            machine = Machine(group, Store(**maps), state, self._limits, slice_rows=self.slice_rows)
            closed = NO_TIMESTAMP if saved is None else saved.checkpoint.executed
            disk, replica = self._disk, self._replicas[group]
            comparison = Comparison(
                replica, machine, pass_s=self._compare_s, rows=disk.rows,
                origin=partial(disk.origin, group), confirm=partial(disk.note_origin, group, None),
            )  # fmt: skip
            found = Partition(replica, machine, closed, self._share, comparison, self._chores)
            self._partitions[group] = found
            found.decode = self._decoder
            if machine.placement.version > self.gateway.placement.version:
                self.gateway.placement = machine.placement
        return found

    def _checkpoint(self, group: GroupId) -> GroupCheckpoint:
        partition, replica = self.partition(group), self._replicas[group]
        machine = partition.machine
        checkpoint = Checkpoint(machine.delivered, replica.delivered_ids.copy(), executed=partition.executed)
        return GroupCheckpoint(checkpoint, encode_machine_state(machine.state()))

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """A snapshot of the group: its maps and its checkpoint."""
        return self._disk.snapshot(group, self._checkpoint(group))

    def install(
        self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint, source: ReplicaId
    ) -> None:
        """Replace the group's state by a snapshot."""
        self._disk.note_origin(group, Origin(source, checkpoint.position))
        saved = self._disk.install(group, pieces, checkpoint.position)
        self._installed[group] = saved
        del self._partitions[group]
        self._woken.add(group)

    def unsaved(self, group: GroupId) -> bool:
        """Whether there is more to commit, though nothing was delivered."""
        partition = self.partition(group)
        return partition.worked or partition.executed > self._saved.get(group, NO_TIMESTAMP)

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit the state of these groups."""
        for group in positions:
            partition = self.partition(group)
            retained = partition.replica.oldest_retained()
            bound = min(self._disk.oldest(group), partition.executed if retained is None else retained)
            try:
                partition.machine.forget_outcomes(bound)
            except DamagedRow as error:
                self.damaged[group] = error
            partition.worked = False
            self._saved[group] = partition.executed
        self._disk.commit({group: self._checkpoint(group) for group in positions}, after)

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return the recent deliveries after a position."""
        return self._disk.deliveries(group, after, count, size)

    # What happens

    def deliver(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Deliver the group's next messages."""
        self._woken.add(group)
        self._disk.remember(group, deliveries)
        self.partition(group).deliver(deliveries)

    def repeat(self, group: GroupId, asked: Sequence[tuple[ClientId, Multicast]]) -> None:
        """Answer requests that were multicast again."""
        self._woken.add(group)
        self.partition(group).repeat(asked)

    def receive(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> bool:
        """Handle messages of replicas and gateways."""
        now = self._now()
        if isinstance(receiver, ReplicaId):
            self._woken.add(receiver.group)
            partition = self.partition(receiver.group)
            for message in messages:
                partition.receive(sender, message, now)
            return not UNHURRIED.issuperset(map(type, messages))
        if receiver == self.gateway.me:
            self.gateway.receive(sender, messages, now)
            return self.gateway.is_due or not all(type(message) is Results for message in messages)
        raise PeerViolation(f"{sender} sent messages to {receiver}, which is not on this node")

    def turn(self, now: float) -> list[Outgoing]:
        """Return all outgoing messages."""
        outgoing: list[Outgoing] = []
        woken, self._woken = self._woken, set()
        if self._long or now >= self._partitions_at or self._ballots_changed():
            self._turn_partitions(self._replicas, woken, now, outgoing)
        elif woken:
            groups = [group for group in self._replicas if group in woken]
            self._turn_partitions(groups, woken, now, outgoing)
        if now >= self._expire_at:
            self._expire_at = now + EXPIRE_S
            self._expire()
        if now >= self._compact_at:
            self._compact_at = now + self._compactor.look_s
            self._compact(now)
        outgoing += self.gateway.turn(now)
        if now >= self.scrubber.wake_at:
            found = self.scrubber.step(self._partitions.keys(), now)
            if found is not None:
                self.damaged.setdefault(*found)
        self.wake_at = min(self._partitions_at, self.gateway.wake_at, self.scrubber.wake_at)
        return outgoing

    def work(self, now: float) -> bool:
        """Do a slice of long work, if one is due. Return whether another turn is due at once."""
        for group in list(self._long):
            try:
                partition = self._partitions.get(group)
                if partition is None or not partition.work(now):
                    continue
            except DamagedRow as error:
                self.damaged[group] = error
            self._woken.add(group)
            return True
        return False

    def _ballots_changed(self) -> bool:
        """Whether a replica takes part in another ballot, or leads or has stopped leading."""
        followed, partitions = self._followed, self._partitions
        for group, replica in self._replicas.items():
            if replica.cballot is not followed.get(group):
                return True
            partition = partitions.get(group)
            if partition is None or partition.leads is not replica.is_leader:
                return True
        return False

    def _turn_partitions(
        self, groups: Iterable[GroupId], woken: set[GroupId], now: float, outgoing: list[Outgoing]
    ) -> None:
        """Let these groups' partitions take their turns, if they have input or one is due."""
        wakes = self._wakes
        for group in groups:
            try:
                partition = self._partitions.get(group) or self.partition(group)
                if group in self._long:
                    wakes[group] = partition.wake_at
                if group in woken or now >= wakes.get(group, 0.0) or partition.leads_anew:
                    outgoing += partition.turn(now)
                    self._order_verdicts(group, partition)
                    wakes[group] = partition.wake_at
                    if partition.has_long_work:
                        self._long.add(group)
                    elif group in self._long:
                        self._long.remove(group)
                        self._share.leave(group)
            except DamagedRow as error:
                self.damaged[group] = error
                wakes[group] = float("inf")
                continue
            replica = partition.replica
            if replica.cballot is not self._followed.get(group):
                self._follow(group, replica, now)
        self._partitions_at = min(wakes.values(), default=float("inf"))

    def _order_verdicts(self, group: GroupId, partition: Partition) -> None:
        """Order what a comparison has found, so that all replicas learn it."""
        if partition.comparison is not None:
            verdicts = partition.comparison.verdicts
            while verdicts:
                with contextlib.suppress(Overloaded):  # the next pass finds it again
                    self.gateway.command(group, verdicts[-1], lambda _: None)
                verdicts.pop()

    def _follow(self, group: GroupId, replica: ReplicaView, now: float) -> None:
        """Let the gateway know the leader of a group, and its members, of which one may lead next."""
        if replica.is_in_ballot(replica.cballot):  # a candidate does not lead its ballot yet
            self._followed[group] = replica.cballot
            self.gateway.follow(group, replica.cballot, replica.membership, now)

    def _expire(self) -> None:
        """As a leader, order the removal of sessions whose deadlines have passed."""
        for group, partition in self._partitions.items():
            replica = partition.replica
            before = timestamp(max(replica.clock, replica.quorum_time()), GroupId(0))
            if replica.is_leader and partition.machine.has_expired(before):
                with contextlib.suppress(Overloaded):  # the next round retries
                    self.gateway.command(group, Expire(before), lambda _: None)

    def _compact(self, now: float) -> None:
        """As a leader, order the compaction of history that need not be kept."""
        for group, partition in self._partitions.items():
            if group in self.damaged:
                continue
            try:
                floor = self._compactor.floor(partition.replica, partition.machine, now)
            except DamagedRow as error:
                self.damaged[group] = error
                continue
            if floor:
                self._propose_floor(group, floor)

    def _propose_floor(self, group: GroupId, floor: int) -> None:
        with contextlib.suppress(Overloaded):  # the next look retries
            self.gateway.command(group, Compact(floor), partial(self._compacted, group))
            self._compactor.asked.add(group)

    def _compacted(self, group: GroupId, _: object) -> None:
        """It was ordered, or rejected: by a pin or a floor that came before it, which the next look sees."""
        self._compactor.asked.discard(group)

    def status(self, group: GroupId) -> Mapping[str, Any]:
        """Return the status of a group, for people."""
        partition = self.partition(group)
        history = self._compactor.status(partition.replica, partition.machine)
        return {"deliveries": self._disk.count(group), "history": history, **partition.status()}
