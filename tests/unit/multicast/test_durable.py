"""Records and their fold: in pieces as at once, and a crash leaves a whole number of batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import messages as msg
from multicast import types as t
from multicast.durable import Accepted, Checkpoint, Dropped, Durable, Joined, Learned, Promised, Record
from multicast.protocol import Ready
from multicast.sim.checkers import Checker
from multicast.sim.clients import Workload
from multicast.sim.host import DiskDelays, Host
from multicast.sim.run import Scenario, Simulation
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import EXAMPLES, G0, G1, HERE, start

MIDS = [t.MessageId(t.ClientId(1), sequence, 0) for sequence in range(1, 6)]
TIMES = st.integers(1, 30)


def ballot(number: int) -> t.Ballot:
    return t.Ballot(number, HERE[number % 3], 0)


@st.composite
def entry_states(draw: st.DrawFn) -> msg.EntryState:
    mid = draw(st.sampled_from(MIDS))
    committed = draw(st.booleans())
    at = t.timestamp(draw(TIMES), G0)
    phase = t.Phase.COMMITTED if committed else t.Phase.ACCEPTED
    return msg.EntryState(
        mid, (G0,), draw(st.binary(max_size=3)), 1, phase, at, at if committed else t.NO_TIMESTAMP
    )


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found: list[Record] = []
    number = 0
    for _ in range(draw(st.integers(0, 20))):
        mid = draw(st.sampled_from(MIDS))
        at = t.timestamp(draw(TIMES), G0)
        payload = draw(st.binary(max_size=3))
        match draw(st.integers(0, 6)):
            case 0:
                number += draw(st.integers(1, 3))
                found.append(Promised(ballot(number)))
            case 1:
                number += draw(st.integers(1, 3))
                states = draw(st.lists(entry_states(), max_size=4, unique_by=lambda state: state.mid))
                found.append(Joined(ballot(number), draw(TIMES), tuple(states)))
            case 2:
                found.append(msg.Delivery(mid, (G0,), payload, 1, at, at, t.NO_TIMESTAMP, mismatch=False))
            case 3:
                found.append(Learned(draw(entry_states())))
            case 4:
                found.append(Dropped(tuple(draw(st.sets(st.sampled_from(MIDS), max_size=3)))))
            case _:
                mids = tuple(draw(st.lists(st.sampled_from(MIDS), min_size=1, max_size=3, unique=True)))
                count = len(mids)
                columns = (at,) * count, (payload,) * count, tuple(range(1, count + 1))
                dests = draw(st.sampled_from([((G0,),), ((G0,), (G0, G1), (G0,))[:count]]))
                found.append(Accepted(dests, mids, *columns, draw(TIMES)))
    return found


def fold(*batches: Sequence[Record]) -> Durable:
    durable = Durable()
    for batch in batches:
        durable.apply(batch)
    return durable


def accepted(mid: t.MessageId, record: Accepted) -> msg.EntryState:
    at = record.mids.index(mid)
    return msg.EntryState(
        mid, record.dests[at % len(record.dests)], record.payloads[at], record.ack_below[at],
        t.Phase.ACCEPTED, record.local_ts[at], t.NO_TIMESTAMP,
    )  # fmt: skip


def obvious_entry(mid: t.MessageId, history: Sequence[Record]) -> msg.EntryState | None:
    """What is known of one message: the last word on it, but accepting never undoes a decision."""
    known: msg.EntryState | None = None
    for record in history:
        if isinstance(record, Joined):
            known = next((state for state in record.entries if state.mid == mid), None)
        elif isinstance(record, Learned) and record.entry.mid == mid:
            known = record.entry
        elif isinstance(record, Dropped) and mid in record.mids:
            known = None
        elif isinstance(record, msg.Delivery) and record.mid == mid:
            known = msg.EntryState(
                mid, record.dest, record.payload, record.ack_below,
                t.Phase.COMMITTED, record.local_ts, record.global_ts,
            )  # fmt: skip
        elif isinstance(record, Accepted) and mid in record.mids:
            decided = known is not None and known.phase is t.Phase.COMMITTED
            known = known if decided else accepted(mid, record)
    return known


@EXAMPLES
@given(records())
def test_the_fold_is_the_obvious_one(history: list[Record]) -> None:
    durable = fold(history)
    ballots = [r.ballot for r in history if isinstance(r, (Promised, Joined))]
    joined = [r.ballot for r in history if isinstance(r, Joined)]
    clocks = [r.clock for r in history if isinstance(r, (Accepted, Joined))]
    assert durable.ballot == (ballots[-1] if ballots else t.NO_BALLOT)
    assert durable.cballot == (joined[-1] if joined else t.NO_BALLOT)
    assert durable.clock == max(clocks, default=0)
    for mid in MIDS:
        assert durable.entries.get(mid) == obvious_entry(mid, history)
    assert set(durable.entries) <= set(MIDS)


@EXAMPLES
@given(records(), st.lists(st.integers(0, 20), max_size=5))
def test_folding_in_pieces_is_folding_at_once(history: list[Record], cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(history)) for cut in cuts), len(history)]
    pieces = [history[a:b] for a, b in pairwise(borders)]
    in_pieces, at_once = fold(*pieces), fold(history)
    assert in_pieces == at_once
    assert list(in_pieces.entries) == list(at_once.entries)


@dataclass
class Batches:
    """What one replica handed to its disk, and what it wanted to say once that is durable."""

    records: list[list[Record]]
    promises: list[list[object]]


def recording(batches: dict[t.ReplicaId, Batches]) -> type[WhiteBox]:
    class Recording(WhiteBox):
        def ready(self) -> Ready:
            ready = super().ready()
            if ready.persist or ready.promise:
                mine = batches.setdefault(self.me, Batches([], []))
                mine.records.append(list(ready.persist))
                mine.promises.append([message for _, message in ready.promise])
            return ready

    return Recording


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_leaves_a_prefix_of_the_batches_with_everything_that_was_promised(seed: int) -> None:
    rng = random.Random(seed)
    batches: dict[t.ReplicaId, Batches] = {}
    scenario = Scenario(
        recording(batches), groups=2, workload=Workload(messages=60, think_s=0.02),
        disk=DiskDelays(least_s=0.001, most_s=0.05),
    )  # fmt: skip
    said: dict[t.ReplicaId, list[object]] = {}

    class Listener(Checker):
        def sent(self, host: Host, receivers: Sequence[t.Process], message: object) -> None:
            said.setdefault(host.me, []).append(message)

    simulation = Simulation(scenario, seed, observers=[Listener()])
    simulation.start()
    partial = 0
    simulation.run_until(lambda: False, rng.uniform(0.2, 0.6))
    for replica, host in simulation.hosts.items():
        host.crash()
        mine = batches[replica]
        prefixes = [fold(*mine.records[:count]) for count in range(len(mine.records) + 1)]
        matching = [count for count, prefix in enumerate(prefixes) if prefix == host.durable]
        assert matching, f"{replica} kept {host.durable}, which is no prefix of what it wrote"
        partial += matching[-1] < len(mine.records)
        promised = [m for batch in mine.promises[: matching[-1]] for m in batch]
        revealing = (msg.AcceptAck, msg.NewLeader, msg.NewLeaderAck, msg.NewState, msg.NewStateAck)
        for message in said.get(replica, []):
            if isinstance(message, revealing):
                assert any(message is known for known in promised), f"{replica} said {message} too early"
    assert partial, "no crash lost anything: the test shows nothing"


def restarted(durable: Durable, checkpoint: Checkpoint | None = None) -> WhiteBox:
    return start(WhiteBox, HERE[1], durable=durable, checkpoint=checkpoint or Checkpoint())


@EXAMPLES
@given(records())
def test_a_restart_brings_back_the_fold(history: list[Record]) -> None:
    durable = fold(history)
    replica = restarted(durable)
    assert (replica.ballot, replica.cballot) == (durable.ballot, durable.cballot)
    assert replica.clock >= durable.clock
    assert {e.mid: e.state() for e in replica.entries.values()} == durable.entries
    assert replica.status is not t.Status.LEADER
    assert replica.highest_number >= durable.ballot.number


@pytest.mark.parametrize(
    ("history", "status"),
    [
        ([], t.Status.RECOVERING),
        ([Joined(ballot(3), 1, ())], t.Status.FOLLOWER),
        ([Joined(ballot(3), 1, ()), Promised(ballot(5))], t.Status.RECOVERING),
        ([Promised(ballot(3))], t.Status.RECOVERING),
        ([Joined(ballot(1), 1, ())], t.Status.RECOVERING),
    ],
    ids=["fresh", "joined", "a promise in flight", "only a promise", "led it"],
)
def test_a_restarted_replica_follows_only_a_ballot_it_joined_and_did_not_lead(
    history: list[Record], status: t.Status
) -> None:
    assert restarted(fold(history)).status is status


def test_a_restart_knows_which_entries_its_application_already_has() -> None:
    first, second = (
        msg.Delivery(
            mid, (G0,), b"x", 1, t.timestamp(time, G0), t.timestamp(time, G0), t.NO_TIMESTAMP, mismatch=False
        )
        for mid, time in [(MIDS[0], 3), (MIDS[1], 4)]
    )
    replica = restarted(fold([first, second]), Checkpoint(position=t.Timestamp(first.global_ts)))
    assert replica.entries[MIDS[0]].delivered
    assert not replica.entries[MIDS[1]].delivered
    assert replica.last_delivered == first.global_ts
    assert replica.clock >= 4


def test_a_restarted_replicas_clock_is_not_behind_what_it_has_delivered() -> None:
    """Invariant 14 for a follower that missed the ACCEPT, got the delivery by catching up, executed it and
    collected it: no entry is left from which the clock could be raised.
    """
    at = t.timestamp(9, G0)
    caught_up = msg.Delivery(MIDS[0], (G0,), b"x", 1, at, at, t.NO_TIMESTAMP, mismatch=False)
    replica = restarted(
        fold([Joined(ballot(3), 1, ()), caught_up], [Dropped((MIDS[0],))]), Checkpoint(position=at)
    )
    assert replica.clock >= 9
