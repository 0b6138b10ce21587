"""The reply gate and its table of dependencies, by hand and against an obvious version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.request import Footprint, Range
from kvstore.store.dependencies import Dependencies
from kvstore.store.gate import OFTEN, Announcement, Gate, Level, Turn
from multicast.errors import InvariantBroken
from multicast.types import GroupId, Timestamp

A, B, C, D = (GroupId(number) for number in range(4))
K = Footprint(reads=(b"k",))
PUT = Footprint(writes=(b"k",))


def ts(number: int) -> Timestamp:
    return Timestamp(number)


def announced(group: GroupId, delivered: int, *reach: GroupId, closed: int = 0) -> Announcement:
    """A group that has only level 0."""
    return Announcement(group, ts(closed), (Level(ts(delivered), sum(1 << g for g in {group, *reach})),))


def answers(gate: Gate[str]) -> list[str]:
    return gate.turn(0.0).answers


def said(gate: Gate[str], now: float = 0.0) -> list[tuple[GroupId, Announcement]]:
    """What a gate announces in its next two turns, of which the second comes when the first wants it to."""
    first = gate.turn(now)
    later = gate.turn(gate.wake_at) if gate.wake_at < now + 10 else Turn([], [], [])
    return first.announcements + first.calm + later.announcements + later.calm


def test_one_group_waits_for_nothing_and_says_nothing() -> None:
    gate: Gate[str] = Gate(A)
    for number in range(1, 5):
        gate.delivered(ts(number), (A,), f"t{number}", PUT)
        gate.executed(f"t{number}")
        assert gate.turn(0.0) == ([f"t{number}"], [], [])
    assert gate.closed == 4


def test_a_conflict_waits_until_the_other_destination_has_delivered() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B), "z", PUT)
    gate.executed("z")
    gate.delivered(ts(6), (A,), "reader", K)
    gate.executed("reader")
    gate.delivered(ts(7), (A,), "other", Footprint(reads=(b"other",)))
    gate.executed("other")
    assert answers(gate) == ["z", "other"]
    gate.heard(announced(B, 4, A))
    assert answers(gate) == []
    gate.heard(announced(B, 5, A))
    assert answers(gate) == ["reader"]
    assert gate.closed == 7
    assert len(gate) == 0


def test_readers_of_the_same_key_do_not_wait_for_each_other() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B), "z", K)
    gate.delivered(ts(6), (A,), "reader", K)
    gate.delivered(ts(7), (A,), "writer", PUT)
    for answer in ("reader", "writer"):
        gate.executed(answer)
    assert answers(gate) == ["reader"]


def test_an_answer_waits_for_its_execution() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B), "z", PUT)
    gate.read("read", K)
    gate.heard(announced(B, 5, A))
    assert answers(gate) == []
    gate.executed("read")
    assert answers(gate) == ["read"]


def test_two_groups_among_many_close_in_one_hop_and_a_third_one_takes_one_more() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B))
    gate.turn(0.0)
    gate.heard(announced(B, 9, A, C))
    gate.turn(0.0)
    assert gate.closed == 4
    gate.heard(
        Announcement(B, ts(0), (Level(ts(9), 0b111), Level(ts(8), 0b111))),
    )
    gate.turn(0.0)
    assert gate.closed == 5


def test_announcements_may_be_repeated_reordered_and_outdated() -> None:
    gate: Gate[str] = Gate(A)
    gate.heard(announced(B, 7, A))
    gate.heard(announced(B, 3, A, C))
    gate.heard(announced(B, 7, A))
    gate.delivered(ts(5), (A, B))
    gate.turn(0.0)
    assert gate.closed == 5


def test_only_those_who_share_something_open_are_told_and_only_news() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B))
    [(group, announcement)] = said(gate)
    assert (group, announcement.levels[0]) == (B, Level(ts(5), 0b11))
    gate.delivered(ts(6), (A,))
    assert said(gate) == []
    gate.heard(announced(B, 5, A))
    [(group, announcement)] = said(gate)
    assert (group, announcement.closed) == (B, 5)
    gate.delivered(ts(7), (A,))
    assert said(gate) == []
    assert gate.repeat() == []


def test_a_group_that_has_closed_all_that_it_shares_is_told_nothing_unless_it_asks() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B))
    gate.delivered(ts(6), (A, C))
    assert [group for group, _ in said(gate)] == [B, C]
    gate.heard(Announcement(B, ts(5), ()))
    gate.heard(announced(C, 6, A))
    [(group, announcement)] = said(gate)
    assert (group, announcement.closed, gate.closed) == (C, 6, 6), "C may not have closed it yet"
    gate.heard(Announcement(B, ts(0), (), wanted=ts(1)))  # of a new leader, which does not know
    [(group, announcement)] = said(gate)
    assert (group, announcement.closed) == (B, 6)
    gate.delivered(ts(7), (A, B))
    assert [group for group, _ in said(gate)] == [B], "it has not closed this one"


def test_a_gate_without_turns_closes_what_it_can_when_it_is_settled() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(4), (A,))
    assert gate.closed == 0
    gate.settle()
    assert gate.closed == 4
    gate.delivered(ts(5), (A, B))
    gate.delivered(ts(6), (A,))
    gate.heard(Announcement(B, ts(0), (), wanted=ts(1)))
    gate.settle()
    assert (gate.closed, len(gate)) == (4, 1)
    gate.heard(announced(B, 5, A))
    gate.settle()
    assert (gate.closed, len(gate)) == (6, 0)
    gate.new_ballot(ts(7))
    assert [group for group, _ in said(gate)] == [B], "it has asked, and hears what is closed"


def test_a_new_leader_answers_a_group_that_has_asked_before() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A,))
    gate.settle()
    gate.heard(Announcement(B, ts(0), (), wanted=ts(1)))
    gate.settle()  # it does not lead yet
    gate.new_ballot(ts(6))
    assert [group for group, _ in said(gate)] == [B]


def test_a_lost_announcement_is_asked_for() -> None:
    here: Gate[str] = Gate(A)
    there: Gate[str] = Gate(B)
    here.delivered(ts(5), (A, B))
    there.delivered(ts(5), (A, B))
    here.turn(0.0)  # lost
    [(_, announcement)] = said(there)
    here.heard(announcement)
    here.turn(0.0)  # lost, and nothing is open here any more
    assert (here.closed, there.closed) == (5, 4)
    assert there.repeat() == [], "it may be on its way"
    [(group, wish)] = there.repeat()
    assert (group, wish.wanted) == (A, 5)
    here.heard(wish)
    [(_, announcement)] = said(here)
    there.heard(announcement)
    there.turn(0.0)
    assert there.closed == 5
    for _ in range(2):  # as often as it is asked for
        here.heard(wish)
        assert [group for group, _ in said(here)] == [B]


def test_a_gate_made_anew_says_how_far_its_group_has_delivered() -> None:
    """Everything is collected here, but the other group's new leader has not heard of it."""
    here: Gate[str] = Gate(A)
    there: Gate[str] = Gate(B)
    there.delivered(ts(5), (A, B))
    here.delivered(ts(7), (A,))
    there.repeat()
    [(_, wish)] = there.repeat()
    here.heard(wish)
    [(_, announcement)] = said(here)
    there.heard(announcement)
    there.turn(0.0)
    assert there.closed == 5


def test_a_follower_that_lags_closes_no_more_than_it_has_delivered() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(3), (A, B))
    gate.heard(Announcement(A, ts(9), ()))
    assert (gate.closed, len(gate)) == (3, 0)
    gate.delivered(ts(5), (A, B))
    assert len(gate) == 1
    gate.heard(Announcement(A, ts(9), ()))
    assert (gate.closed, len(gate)) == (5, 0)


def test_a_new_leader_takes_everything_for_dependent_until_what_it_found_is_closed() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(4), (A, C))
    gate.heard(Announcement(A, ts(4), ()))  # the leader says so
    assert len(gate) == 0
    gate.delivered(ts(5), (A, B))
    gate.new_ballot(ts(5))
    gate.executed("repeated")
    gate.delivered(ts(6), (A,), "new", Footprint(reads=(b"other",)))
    gate.executed("new")
    assert answers(gate) == []
    gate.heard(announced(B, 5, A))
    assert answers(gate) == ["repeated", "new"]
    gate.executed("repeated")
    assert answers(gate) == ["repeated"]


def test_a_new_leader_waits_for_the_last_of_what_it_found_open() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(4), (A, B))
    gate.delivered(ts(5), (A, C))
    gate.new_ballot(ts(5))
    gate.executed("repeated")
    gate.heard(announced(B, 4, closed=4))
    assert answers(gate) == []
    assert gate.closed == 4
    gate.heard(announced(C, 5, closed=5))
    assert answers(gate) == ["repeated"]


def test_what_was_held_in_an_earlier_ballot_is_answered_only_if_it_is_executed_again() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B), "z", PUT)
    gate.delivered(ts(6), (A,), "held", K)
    gate.executed("held")
    gate.delivered(ts(7), (A,), "waits", K)
    gate.new_ballot(ts(7))
    gate.executed("waits")
    assert answers(gate) == []
    gate.heard(announced(B, 5, A))
    assert answers(gate) == ["waits"]
    assert (len(gate._depends), len(gate._held), len(gate._executed)) == (0, 0, 0)


def test_what_an_earlier_leader_may_have_shown_is_inherited_when_it_is_delivered() -> None:
    """It may still answer a read of "k" and "l": who overwrites "l" depends on what was read in "k"."""
    gate: Gate[str] = Gate(A)
    gate.new_ballot(ts(5))
    gate.delivered(ts(4), (A, C), "taken over", PUT)
    gate.delivered(ts(5), (A, B), "taken over, too", Footprint(writes=(b"m",)))
    gate.delivered(ts(6), (A,), "after them", Footprint(writes=(b"l",)))
    gate.delivered(ts(7), (A,), "after one of them", PUT)
    gate.delivered(ts(8), (A, D), "new", Footprint(writes=(b"n",)))
    gate.delivered(ts(9), (A,), "after all", Footprint(writes=(b"o",)))
    for answer in ("after them", "after one of them", "new", "after all"):
        gate.executed(answer)
    gate.heard(announced(C, 4, closed=4))
    assert answers(gate) == []
    assert gate.closed == 4
    gate.heard(announced(B, 5, closed=5))
    assert answers(gate) == ["after them", "after one of them", "new", "after all"]


def test_what_is_closed_is_forgotten() -> None:
    gate: Gate[str] = Gate(A)
    for number in range(1, 1001):
        gate.delivered(
            ts(number),
            (A, B),
            str(number),
            Footprint((b"r%d" % number,), (b"w%d" % number,), (Range(b"r", b"s"),)),
        )
        gate.executed(str(number))
        gate.heard(announced(B, number - 3, A))
        gate.turn(0.0)
        assert len(gate) <= 4
        assert sum(map(len, gate._shared.values())) == len(gate)
        assert len(gate._dependencies) <= 20
        assert len(gate._depends) <= 4
    gate.heard(announced(B, 1000, A))
    gate.turn(0.0)
    assert (len(gate), len(gate._dependencies), len(gate._depends), len(gate._held)) == (0, 0, 0, 0)


def test_deliveries_out_of_order_are_a_broken_invariant() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A,))
    with pytest.raises(InvariantBroken, match="delivery 5 after 5"):
        gate.delivered(ts(5), (A,))


def test_two_that_wait_under_one_name_are_a_broken_invariant() -> None:
    gate: Gate[str] = Gate(A)
    gate.delivered(ts(5), (A, B), "z", PUT)
    gate.read("read", K)
    with pytest.raises(InvariantBroken, match="read waits for an answer already"):
        gate.read("read", K)


KEYS = st.integers(0, 7).map(lambda n: b"%d" % n)
RANGES = st.builds(Range, KEYS, KEYS | st.none())
FOOTPRINTS = st.builds(
    Footprint,
    *[st.lists(KEYS, max_size=2).map(tuple)] * 2,
    *[st.lists(RANGES, max_size=1).map(tuple)] * 2,
)


def touched(keys: tuple[bytes, ...], ranges: tuple[Range, ...]) -> set[bytes]:
    every = [b"%d" % n for n in range(8)]
    return {*keys, *(key for key in every for asked in ranges if asked.covers(key))}


def conflict(one: Footprint, other: Footprint) -> bool:
    writes = touched(one.writes, one.write_ranges), touched(other.writes, other.write_ranges)
    reads = touched(one.reads, one.read_ranges), touched(other.reads, other.read_ranges)
    return bool(writes[0] & (writes[1] | reads[1]) or writes[1] & reads[0])


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    added=st.lists(st.tuples(FOOTPRINTS, st.integers(1, 5)), max_size=12),
    footprint=FOOTPRINTS,
    closed=st.integers(0, 5),
    asked=st.booleans(),
)
def test_dependencies_against_looking_at_everything(
    added: list[tuple[Footprint, int]], footprint: Footprint, closed: int, *, asked: bool
) -> None:
    """Never lower; and not higher either, as long as there are no ranges."""
    dependencies = Dependencies()
    for other, dependency in added:
        dependencies.add(other, ts(dependency))
        if asked:
            dependencies.of(other)
    for dependency in range(1, closed + 1):
        dependencies.forget(ts(dependency))
    exact = max((d for other, d in added if d > closed and conflict(other, footprint)), default=0)
    assert dependencies.of(footprint) >= exact
    if not any(other.read_ranges or other.write_ranges for other, _ in added):
        assert dependencies.of(footprint) == exact
    assert dependencies.of(footprint) == 0 or dependencies.of(footprint) > closed
    for dependency in range(closed + 1, 6):
        dependencies.forget(ts(dependency))
    assert len(dependencies) == 0


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(st.tuples(RANGES, st.integers(1, 5)), max_size=8), st.integers(0, 5))
def test_no_key_of_a_range_is_forgotten_before_its_dependency(
    added: list[tuple[Range, int]], closed: int
) -> None:
    dependencies = Dependencies()
    for asked, dependency in added:
        dependencies.add(Footprint(read_ranges=(asked,)), ts(dependency))
    for dependency in range(1, closed + 1):
        dependencies.forget(ts(dependency))
    for key in (b"%d" % n for n in range(8)):
        exact = max((d for asked, d in added if d > closed and asked.covers(key)), default=0)
        assert dependencies.of(Footprint(writes=(key,))) >= exact


@pytest.mark.parametrize(
    "footprint",
    [PUT, K, Footprint(write_ranges=(Range(b"a", b"z"),)), Footprint(read_ranges=(Range(b"a", b"z"),))],
)
def test_what_has_been_raised_since_is_not_forgotten(footprint: Footprint) -> None:
    dependencies = Dependencies()
    dependencies.add(footprint, ts(1))
    dependencies.add(footprint, ts(2))
    dependencies.forget(ts(1))
    assert dependencies.of(PUT) == 2
    dependencies.forget(ts(2))
    assert dependencies.of(PUT) == 0


def test_questions_end_although_nothing_can_be_closed() -> None:
    """One of three groups has delivered nothing yet: the others know all they can after one round."""
    gates: dict[GroupId, Gate[str]] = {group: Gate(group) for group in (A, B, C)}
    gates[A].delivered(ts(5), (A, B), "z", PUT)
    gates[A].delivered(ts(6), (A, C), "y", Footprint(writes=(b"l",)))
    gates[B].delivered(ts(5), (A, B), "z", PUT)
    gates[B].delivered(ts(7), (B, C), "x", Footprint(writes=(b"l",)))
    gates[A].read("held", Footprint(reads=(b"k", b"l")))
    asked: list[tuple[GroupId, GroupId]] = []
    said: list[int] = []
    for _ in range(10):
        announcements = [(sender, *each) for sender, gate in gates.items() for each in gate.turn(0.0)[1]]
        said.append(len(announcements))
        for sender, receiver, announcement in announcements:
            if announcement.wanted:
                asked.append((sender, receiver))
            gates[receiver].heard(announcement)
    assert said[-1] == 0
    assert sorted(asked) == [(A, B), (A, C), (B, A), (B, C)], "each asks each other once"
    assert sum(said) <= 8
    assert gates[A].closed < 6


def test_what_is_held_again_and_again_is_asked_for_ahead() -> None:
    """Then the other group announces without a question, and none is repeated for the same."""
    gate: Gate[str] = Gate(A)
    asked: list[int] = []
    step = OFTEN // 2
    for number in range(1, 101):
        gts = ts(number * step)
        gate.delivered(gts, (A, B), f"t{number}", PUT)
        wanted = [each.wanted for _, each in gate.turn(0.0).announcements if each.wanted]
        assert all(upto >= gts - step for upto in wanted)
        asked += wanted
        if number > 1:
            gate.heard(announced(B, gts - step, A))
    assert 2 < len(asked) < 25, "half of AHEAD is eight steps"
    assert asked == sorted(set(asked))
