"""Replicas compare what they have: the leader asks for digests of ranges, and a majority is right.

A checksum says that a row is as it was written. It does not say that the right thing was written: memory may
flip a bit before the checksum is made, and a bug may make replicas differ. So a leader goes through all keys
as of a revision, and through all rows of history above the floor, a slice of bounded size at a time. It
sends the slice's ends to the other members, and compares their digests with its own. The content of a slice
*as of a revision that is not compacted* is a function of the order alone, whenever it is looked at, and
however far a replica has executed beyond it: so two digests of it that differ are proof.

A slice that differs is halved until a single key is left. If a majority of the group agrees about it, one
replica that differs is named by an ordered message (`Deviates`); when that is executed there, the replica
steps aside, and is restored. If there is no majority, nothing is touched, and people are called.

*Copies.* A replica that has installed a snapshot has what its source had, wrong rows included. Until it is
confirmed, it counts as one voice with its source. It is confirmed by a whole pass in which every slice
agreed with a replica that is not of the same origin; or, if there is no such member any more, with all
members, which is logged. See docs/divergence.md, 20.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from kvstore.machine import Compacted, Machine, NotYet
from kvstore.machine.commands import Deviates
from kvstore.machine.request import Range
from kvstore.machine.slices import CHANGES, Meter
from kvstore.machine.versions import OutOfRows, Versions
from kvstore.node.ports import Outgoing
from kvstore.storage.ports import Origin
from kvstore.store.messages import CopyConfirmed, Digest, DigestWanted, Span
from kvstore.store.replica_view import ReplicaView
from kvstore.store.scrubber import SMALL
from multicast.errors import InvariantBroken, PeerViolation
from multicast.types import ReplicaId, Timestamp

logger = logging.getLogger(__name__)

SLICE: Final = 512
"""Rows of a slice, about."""

ANSWER_ROWS: Final = 8 * SLICE
"""Rows that a replica looks at for one digest. If it had to look at more, it does not answer."""

GAP_S: Final = 0.05
"""The shortest pause between two slices."""

WAIT_S: Final = 2.0
"""How long a leader waits for digests."""

ALARMS_MAX: Final = 10

_REVISION: Final = struct.Struct(">Q")
_encode: Final = msgspec.msgpack.Encoder().encode
FIRST: Final = Span(history=False, start=b"", end=None)


class Content(NamedTuple):
    """What a replica has in a span."""

    digest: bytes
    keys: Sequence[bytes]
    resume: bytes | None
    """Where the rest of the span begins, if it was too long."""
    cost: int
    broken: bool = False
    """Whether there are rows that do not fit together: the digest is one that no other replica has."""


def content_of(versions: Versions, span: Span, revision: int, rows: int, me: ReplicaId) -> Content | None:
    """Return the content of a span as of a revision, up to so many rows; None if that is compacted."""
    meter = Meter(rows)
    found: list[Any] = []
    keys: list[bytes] = []
    resume: bytes | None = None
    broken = False
    try:
        if span.history:
            first, last = _revision(span.start), revision if span.end is None else _revision(span.end)
            for at, row in versions.changes(first):
                if at > last:
                    break
                if meter.left <= 0:
                    resume = keys[-1]
                    break
                meter.left -= 1 + len(row) // CHANGES
                found.append((at, row))
                keys.append(_REVISION.pack(at))
        else:
            for entry in versions.scan_at(Range(span.start, span.end), revision, meter=meter):
                found.append(entry)
                keys.append(entry.key)
    except OutOfRows as paused:
        resume = paused.resume
        if resume <= span.start:
            return None  # a key that was written very often since: the next pass finds it at rest
    except (Compacted, NotYet):
        return None
    except InvariantBroken as error:
        # What was written together does not fit together: no other replica has the same.
        found = [str(me), str(error)]
        resume = _behind_broken(versions, keys[-1] if keys else span.start, revision)
        keys, broken = keys[:1], True
    digest = hashlib.blake2b(_encode(found), digest_size=16).digest()
    return Content(digest, keys, resume, rows - meter.left, broken)


def _behind_broken(versions: Versions, start: bytes, revision: int) -> bytes | None:
    """Return where keys go on behind the first one whose older versions cannot be found."""
    for row in versions.rows(Range(start, None), Meter(ANSWER_ROWS)):
        if row is None:
            break
        try:
            versions.get_at(row[0], revision)
        except InvariantBroken:
            return row[0] + b"\0"
    return None


def _revision(data: bytes) -> int:
    return int.from_bytes(data, "big")


@dataclass(slots=True)
class _Round:
    """A slice that is being compared."""

    number: int
    span: Span
    revision: int
    keys: Sequence[bytes]
    began_at: float
    missing: set[ReplicaId]
    """Members that have not answered."""
    answers: dict[ReplicaId, tuple[bytes, Origin | None]] = field(default_factory=dict)


class Comparison:
    """One replica's part in comparisons: as a leader it asks and judges, otherwise it answers."""

    def __init__(
        self,
        replica: ReplicaView,
        machine: Machine,
        *,
        pass_s: float,
        rows: Callable[[], int],
        origin: Callable[[], Origin | None],
        confirm: Callable[[], None],
    ) -> None:
        """`pass_s` is how long a pass takes, or 0 for never; `rows` returns the number of rows of the disk.
        `origin` returns where this replica's state was copied from, until `confirm` is called.
        """
        self.me = replica.me
        self._replica = replica
        self._machine = machine
        self._pass_s = pass_s
        self._rows = rows
        self._origin = origin
        self._confirm = confirm
        self._numbers = 0
        self._round: _Round | None = None
        self._next = FIRST
        """What is left of this pass."""
        self._halves: list[Span] = []
        """While a difference is narrowed down: what is left of the slice that differs."""
        self._revision = 0
        """While a difference is narrowed down: as of when."""
        self._total = SMALL
        self._began_at = float("-inf")
        """When this pass began."""
        self._next_at = 0.0
        self._asked: tuple[ReplicaId, DigestWanted, float] | None = None
        """The last question, until this replica has executed as much."""
        self._copies: dict[ReplicaId, Origin | None] | None = None
        """Origins of the members that have agreed in this pass so far, with some other origin, or as all."""
        self._independent: set[ReplicaId] = set()
        """Those of them that have agreed with another origin in every slice."""
        self.passes = self.slices = self.differences = 0
        self.alarms: deque[str] = deque(maxlen=ALARMS_MAX)
        self.due = False
        """Whether a turn is due before `wake_at`."""
        self.wake_at = 0.0
        self.verdicts: list[Deviates] = []
        """To be ordered by the host."""
        self.outgoing: list[Outgoing] = []

    # Answers

    def wanted(self, sender: ReplicaId, message: DigestWanted, now: float) -> None:
        """Note a leader's question; the next `turn` answers it."""
        if self._is_member(sender):
            self._asked = sender, message, now
            self.due = True

    def _is_member(self, sender: ReplicaId) -> bool:
        """Whether the sender is another member. One that was a member may not know yet that it is none."""
        if sender.group != self.me.group:
            raise PeerViolation(f"{sender} compares itself with group {self.me.group}, but is not of it")
        return sender in self._replica.others

    def _answer(self, now: float) -> None:
        assert self._asked is not None
        sender, wanted, asked_at = self._asked
        if now - asked_at > WAIT_S:
            self._asked = None
        elif self._replica.is_current and wanted.revision <= self._machine.versions.watermark:
            self._asked = None
            found = content_of(self._machine.versions, wanted.span, wanted.revision, ANSWER_ROWS, self.me)
            if found is not None and (found.resume is None or found.broken):
                answer = Digest(wanted.number, found.digest, self._origin())
                self.outgoing.append((self.me, (sender,), answer))

    def confirmed(self, sender: ReplicaId, message: CopyConfirmed) -> None:
        """Note that this replica's state agrees with an independent one."""
        if self._is_member(sender):
            self._confirmed(message.origin)

    def _confirmed(self, origin: Origin) -> None:
        if origin == self._origin():
            self._confirm()
            logger.info("%s: its state, a copy of %s, is confirmed", self.me, origin.source)

    # Questions

    def answered(self, sender: ReplicaId, message: Digest) -> None:
        """Take a member's digest."""
        current = self._round
        if current is not None and message.number == current.number and sender in current.missing:
            current.missing.discard(sender)
            current.answers[sender] = message.digest, message.origin
            self.due = self.due or not current.missing

    def turn(self, now: float) -> None:
        """Answer, judge, ask the next question."""
        if self._asked is not None:
            self._answer(now)
        self.due = self._asked is not None
        if not self._pass_s:
            self.wake_at = float("inf")
        elif not self._leads():
            self._give_up()
            self.wake_at = now + WAIT_S
        else:
            self._lead(now)
            self.wake_at = self._next_at if self._round is None else self._round.began_at + WAIT_S

    def _lead(self, now: float) -> None:
        current = self._round
        if current is not None:
            if current.missing and now - current.began_at < WAIT_S:
                return
            self._round = None
            self._judge(current)
            if self.verdicts:  # until it is executed, the replica that is named would still be a witness
                self._next_at = now + WAIT_S
        if now >= self._next_at:
            self._ask(now)

    def _leads(self) -> bool:
        """Whether this replica leads a group whose members do not change, and can judge them."""
        replica = self._replica
        return replica.is_leader and replica.is_current and replica.membership.is_complete

    def _give_up(self) -> None:
        """Leave it to the next leader, which begins anew."""
        if self._next != FIRST:
            self._began_at = float("-inf")
        self._round, self._next, self._copies = None, FIRST, None
        self._halves = []

    def _ask(self, now: float) -> None:
        versions = self._machine.versions
        members, _ = self._replica.readers
        others = tuple(member for member in members if member != self.me)
        if not others or not versions.watermark:
            self._next_at = now + max(GAP_S, self._pass_s / 100)
            return
        narrowing = bool(self._halves)
        span = self._halves.pop() if narrowing else self._next
        if span == FIRST and not narrowing:
            if now < self._began_at + self._pass_s:
                self._next_at = self._began_at + self._pass_s
                return
            self._total, self._copies, self._began_at = max(SMALL, self._rows()), None, now
        revision = self._revision if narrowing else versions.watermark
        if span.history and span.start == b"":
            span = span._replace(start=_REVISION.pack(versions.floor))
        found = content_of(versions, span, revision, ANSWER_ROWS if narrowing else SLICE, self.me)
        if found is None:
            self._halves = []
            self._copies = {}
            self._advance(span, None)
            self._next_at = now + max(GAP_S, self._pass_s / 100)
            return
        if found.resume is not None:
            span = span._replace(end=found.resume)
        elif span.history and span.end is None:
            span = span._replace(end=_REVISION.pack(revision))
        if not narrowing:
            self._advance(span, found.resume)
        # Revisions rise, so no digest that another life of this leader has asked for has the same number.
        self._numbers = max(self._numbers + 1, revision)
        self._revision = revision
        self._round = _Round(self._numbers, span, revision, found.keys, now, set(others))
        self._round.answers[self.me] = found.digest, self._origin()
        self.outgoing.append((self.me, others, DigestWanted(self._numbers, Timestamp(revision), span)))
        self._next_at = now + max(GAP_S, self._pass_s * found.cost / self._total)

    def _advance(self, span: Span, resume: bytes | None) -> None:
        """Let the pass go on behind a slice."""
        if resume is not None:
            self._next = Span(span.history, resume, None)
        elif not span.history:
            self._next = Span(history=True, start=b"", end=None)
        else:
            self._next = FIRST

    # Judgement

    def _judge(self, current: _Round) -> None:
        self.slices += 1
        digests = {digest for digest, _ in current.answers.values()}
        if len(digests) > 1:
            self._narrow(current)
            return
        if not self._halves:
            self._note_agreement(current)
        if self._next == FIRST and not self._halves:
            self._end_pass()

    def _narrow(self, current: _Round) -> None:
        """Halve a slice whose digests differ, until one key is left; then judge."""
        span, keys = current.span, current.keys
        if len(keys) > 1:
            middle = keys[len(keys) // 2 - span.history]  # rows of history are *after* a revision
            self._halves = [Span(span.history, middle, span.end), Span(span.history, span.start, middle)]
            self._next_at = 0.0
            return
        self._halves = []
        self._copies = {}
        self._decide(current)
        if self._next == FIRST:
            self._end_pass()

    def _decide(self, current: _Round) -> None:
        """Name a replica that differs from a majority, or call people."""
        self.differences += 1
        members, quorum = self._replica.readers
        origins = {member: origin for member, (_, origin) in current.answers.items()}
        voices: dict[bytes, set[ReplicaId]] = {}
        for member, (digest, _) in current.answers.items():
            voices.setdefault(digest, set()).add(root_of(member, origins))
        best = max(voices, key=lambda digest: (len(voices[digest]), digest))
        wrong = sorted(member for member, (digest, _) in current.answers.items() if digest != best)
        where = f"group {self.me.group}, {describe(current.span)}, as of revision {current.revision}"
        if len(voices[best]) < quorum:
            parts = [
                sorted(str(member) for member, (each, _) in current.answers.items() if each == digest)
                for digest in sorted(voices)
            ]
            self._alarm(
                f"{where}: replicas differ, and no majority of {len(members)} independent ones agrees: "
                f"{' against '.join(map(', '.join, parts))}; nothing is changed, an operator must decide"
            )
            return
        origin = origins[wrong[0]]
        self._alarm(f"{where}: {wrong[0]} differs from the majority, and is to restore its state")
        position = 0 if origin is None else origin.position
        span = current.span
        self.verdicts.append(
            Deviates(wrong[0], position, span.history, span.start, span.end, current.revision)
        )

    def _alarm(self, text: str) -> None:
        self.alarms.append(text)
        logger.critical("%s", text)

    def _note_agreement(self, current: _Round) -> None:
        """Note which copies agree: with a replica of another origin, or with all members."""
        members, _ = self._replica.readers
        origins = {member: origin for member, (_, origin) in current.answers.items()}
        roots = {member: root_of(member, origins) for member in origins}
        independent = {member for member, root in roots.items() if {*roots.values()} - {root}}
        if self._copies is None:
            self._copies, self._independent = dict(origins), independent
        self._independent &= independent
        whole = len(origins) == len(members)
        self._copies = {
            member: origin
            for member, origin in self._copies.items()
            if origins.get(member) == origin and member in origins and (whole or member in independent)
        }

    def _end_pass(self) -> None:
        self.passes += 1
        for member, origin in sorted((self._copies or {}).items()):
            if origin is None:
                continue
            if member not in self._independent:
                self._alarm(
                    f"group {self.me.group}: all members have copies of what {origin.source} had, so no "
                    f"other can confirm the copy of {member}; it counts from now on, since all agree"
                )
            if member == self.me:
                self._confirmed(origin)
            else:
                self.outgoing.append((self.me, (member,), CopyConfirmed(origin)))
        self._copies = None

    # Verdicts

    def reason(self, verdict: Deviates) -> str | None:
        """Return why this replica is to step aside; None if the verdict is not about its present state."""
        origin = self._origin()
        if verdict.replica != self.me or verdict.copied_at != (0 if origin is None else origin.position):
            return None
        span = Span(verdict.history, verdict.start, verdict.end)
        return f"{describe(span)} differs from what a majority has, as of revision {verdict.revision}"

    def status(self) -> dict[str, Any]:
        """Return the status, for people."""
        origin = self._origin()
        return {
            "passes": self.passes,
            "slices": self.slices,
            "differences": self.differences,
            "alarms": list(self.alarms),
            "unconfirmed": None if origin is None else f"a copy of {origin.source}, at {origin.position}",
        }


def root_of(member: ReplicaId, origins: Mapping[ReplicaId, Origin | None]) -> ReplicaId:
    """Return the replica that a member's state comes from, through all copies that are not confirmed."""
    seen = {member}
    while (origin := origins.get(member)) is not None and origin.source not in seen:
        member = origin.source
        seen.add(member)
    return min(seen) if origin is not None else member


def describe(span: Span) -> str:
    """Return a span, for people."""
    if span.history:
        end = "" if span.end is None else f" up to {_revision(span.end)}"
        return f"the history after revision {_revision(span.start)}{end}"
    return f"the keys from {span.start!r}" + ("" if span.end is None else f" to {span.end!r}")
