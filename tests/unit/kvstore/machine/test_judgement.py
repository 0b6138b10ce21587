"""All destinations of a message judge it alike, whatever its client does and each of them has seen.

A hostile client sends any number with any content, acknowledgement and deadline to any groups, and groups
expire sessions, restart and remove rows when they like. No message is executed in one of its destinations and
not in another, or refused there for another reason; and within its deadline a request is executed once.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvstore.machine.codec import decode_machine_state, encode_machine_state
from kvstore.machine.commands import Command, Delivered, Expire, Request
from kvstore.machine.machine import Machine
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Compare, Condition, Operator, Put, Subject, Transaction
from kvstore.machine.results import Refusal, Refused
from kvstore.machine.state import MachineState, Store, Vote
from multicast.types import ClientId, Destinations, GroupId, MessageId, timestamp
from tests.unit.kvstore.machine.test_machine_model import copy_of

GROUPS = [GroupId(g) for g in range(3)]
PLACEMENT = Placement(1, Scheme.ORDERED, (b"", b"k1", b"k2"), tuple(GROUPS), tuple(GROUPS))
WINDOW = 3


class Group:
    """A group's only replica, which keeps votes to itself for a while."""

    def __init__(self, group: GroupId) -> None:
        self.group = group
        self.store = Store()
        self.machine = Machine(group, self.store, MachineState(PLACEMENT), window=WINDOW)
        self.verdicts: dict[int, Refusal | bool] = {}
        """For each message why it was refused, or else whether it was executed, not only repeated."""
        self.votes: list[Vote] = []

    def restart(self) -> None:
        state = decode_machine_state(encode_machine_state(self.machine.state()))
        self.store = copy_of(self.store)
        self.machine = Machine(self.group, self.store, state, window=WINDOW)


class World:
    """Groups that see the messages of one order, each at its own pace."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.groups = {g: Group(g) for g in GROUPS}
        self.messages = self.some_messages(120)
        self.queues = {g: [m for m in self.messages if g in m.destinations] for g in GROUPS}

    def some_messages(self, count: int) -> list[Delivered]:
        rng, found = self.rng, []
        for i in range(count):
            gts = timestamp(i + 1, rng.choice(GROUPS))
            destinations: Destinations = tuple(sorted(rng.sample(GROUPS, rng.randint(1, 3))))
            command: Command = self.some_transaction(i, destinations)
            if rng.random() < 0.15:
                destinations, command = destinations[:1], Expire(max(0, gts - rng.choice([0, 2000, 9000])))
            sequence = rng.randrange(6)
            ack_below = max(0, sequence - rng.choice([0, 0, 1, 1, 2, 3, -2]))
            deadline = gts + rng.choice([-1, 0, 1500, 5000, 15_000, 60_000])
            request = Request(rng.randint(1, 2), sequence, ack_below, deadline, rng.randrange(2), command)
            found.append(Delivered(gts, MessageId(ClientId(9), i, 0), destinations, request))
        return found

    def some_transaction(self, i: int, destinations: Destinations) -> Transaction:
        rng = self.rng
        conditions: list[Condition] = [
            Compare(b"k%d" % g, Subject.VERSION, Operator.LESS, rng.choice([0, 99]))
            for g in destinations
            if rng.random() < 0.4
        ]
        writes = tuple(Put(b"k%d" % g, b"%d" % i) for g in destinations)
        return Transaction(tuple(conditions), writes, writes)

    def step(self) -> None:
        rng = self.rng
        group = self.groups[rng.choice(GROUPS)]
        kind = rng.random()
        if kind < 0.5:
            if self.queues[group.group]:
                group.machine.deliver(self.queues[group.group].pop(0))
        elif kind < 0.8:
            if group.votes:
                group.machine.vote(group.votes.pop(rng.randrange(len(group.votes))))
        elif kind < 0.95:
            group.machine.work()
        else:
            self.note(group)
            group.restart()
            self.pull(group)
        self.note(group)

    def pull(self, group: Group) -> None:
        """Ask again for the votes that were lost."""
        for gts, others in group.machine.open_votes():
            for other in others:
                said = self.groups[other].machine.known_of(gts)
                if isinstance(said, Vote):
                    group.votes.append(said)
                elif said is not None:
                    group.machine.outcome(gts, said)

    def note(self, group: Group) -> None:
        effects = group.machine.drain()
        written = {gts for gts, _ in effects.rows}
        for executed in effects.results:
            gts, result = executed.delivered.gts, executed.result
            group.verdicts[gts] = result.refusal if isinstance(result, Refused) else gts in written
        for vote, others in effects.votes:
            for other in others:
                self.groups[other].votes.append(vote)

    def finish(self) -> None:
        for _ in range(10_000):
            machines = [group.machine for group in self.groups.values()]
            if not any(self.queues.values()) and all(m.watermark == m.delivered for m in machines):
                return
            self.step()
        pytest.fail("something waits for ever")

    def check(self) -> None:
        executed: Counter[tuple[object, ...]] = Counter()
        until: dict[tuple[object, ...], int] = {}
        for message in self.messages:
            request = message.request
            verdicts = [self.groups[g].verdicts.get(message.gts, False) for g in message.destinations]
            assert len(set(verdicts)) == 1, (message, verdicts)
            name = (message.destinations, request.client, request.sequence, request.digest)
            if verdicts[0] is True:
                assert until.get(name, 0) < message.gts, "executed again within a deadline that it has had"
                executed[name] += 1
            if not isinstance(verdicts[0], Refusal):
                until[name] = max(until.get(name, 0), request.deadline)


@pytest.mark.parametrize("seed", range(40))
def test_all_destinations_judge_alike(seed: int) -> None:
    world = World(random.Random(seed))
    world.finish()
    world.check()


def test_the_worlds_have_all_that_can_happen() -> None:
    found: Counter[Refusal | bool] = Counter()
    for seed in range(40):
        world = World(random.Random(seed))
        world.finish()
        for group in world.groups.values():
            found.update(group.verdicts.values())
    wanted = (Refusal.EXPIRED, Refusal.MISMATCH, Refusal.WINDOW_FULL, Refusal.FORGOTTEN, True, False)
    assert all(found[verdict] > 50 for verdict in wanted), found
