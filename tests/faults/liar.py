"""A peer that knows the secret and says anything: its connection, and a grammar of what it says.

What it says is well-formed, names real replicas, groups and ballots, and comes in any order. Left out is only
what a correct member may say, and is believed (docs/divergence.md, 19): it wins no elections, and reports no
watermarks or deliveries as a leader.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from wbkv_proto.link_pb2 import Hello

from kvstore.config.addresses import NodeId, join_address
from kvstore.config.model import Config
from kvstore.machine.codec import digest_of as digest_of_command
from kvstore.machine.codec import encode_command, encode_request
from kvstore.machine.commands import Request
from kvstore.machine.request import Operation, Put, Range, Scan, Transaction
from kvstore.machine.state import Vote
from kvstore.node.snapshots import encode_checkpoint
from kvstore.store.messages import STORE_MESSAGES, RaiseClock, Votes
from kvstore.wire.frames import PROTOCOL_VERSION, TAGS, Envelope, FrameCodec
from kvstore.wire.handshake import DiallingSide
from kvstore.wire.messages import NODE, SnapshotPiece
from multicast import messages as msg
from multicast.client import Reply
from multicast.durable import Checkpoint
from multicast.membership import Configuration, Membership
from multicast.types import (
    NO_BALLOT,
    NUMBER_JUMP,
    TIMESTAMP_MAX,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
    digest_of,
)

Strategy: TypeAlias = st.SearchStrategy[Any]
CODEC: Final = FrameCodec(STORE_MESSAGES)
NUMBER_MAX: Final = 2**63 - 1
GATEWAY: Final = ClientId(0xBAD)
BELIEVED: Final = (msg.NewState, msg.Deliver, msg.Executed, msg.Heartbeat, msg.Accept, msg.NewLeader)
"""Messages whose sender is believed if it leads; here it does not, and names ballots that it cannot lead."""


class Liar:
    """A connection of one node to another, kept open."""

    def __init__(self, config: Config, me: NodeId, to: NodeId) -> None:
        self._config, self._me, self._to = config, me, to
        self._socket: socket.socket | None = None
        self.connections = 0

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send a frame; connect again if the node has closed the connection."""
        data = CODEC.encode(envelopes)
        for _ in range(2):
            if self._socket is None:
                self._connect()
            assert self._socket is not None
            try:
                self._socket.sendall(len(data).to_bytes(4, "big") + data)
                if not self._closed():
                    return
            except OSError:
                pass
            self.close()

    def _closed(self) -> bool:
        assert self._socket is not None
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1 << 16)
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(10)

    def _connect(self) -> None:
        config = self._config
        self._socket = socket.create_connection(config.addresses[self._to], 10)
        hello = Hello(
            version=PROTOCOL_VERSION, cluster=config.id, topology_hash=config.hash, node=self._me,
            to=self._to, incarnation=config.incarnations[self._me],
            address=join_address(*config.addresses[self._me]),
        )  # fmt: skip
        handshake = DiallingSide(config.secret, hello)
        said: bytes | None = handshake.opening()
        while said is not None:
            self._socket.sendall(len(said).to_bytes(4, "big") + said)
            said = handshake.answered(self._read())
        self.connections += 1

    def _read(self) -> bytes:
        assert self._socket is not None
        with self._socket.makefile("rb", buffering=0) as file:
            size = int.from_bytes(file.read(4) or b"", "big")
            return file.read(size) or b""

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


@dataclass(frozen=True)
class Grammar:
    """What can be said in a cluster, at about this revision, by the replicas of one node."""

    groups: Mapping[GroupId, Sequence[ReplicaId]]
    own: Sequence[ReplicaId]
    recent: int
    """A revision that the cluster has reached."""

    def frames(self) -> Strategy:
        """Bursts of frames to any of the other nodes' processes."""
        senders: list[Process] = [*self.own, GATEWAY, NODE]
        others = [m for ms in self.groups.values() for m in ms if m not in self.own]
        envelope = st.tuples(
            st.sampled_from(senders),
            st.sampled_from([*others, ClientId(7), NODE, ReplicaId(GroupId(0), 1, 99)]),
            st.lists(self.messages(), min_size=1, max_size=2),
        )
        anything = st.lists(envelope, min_size=1, max_size=2)
        votes = st.tuples(st.sampled_from(self.own), st.sampled_from(others)).flatmap(self._vote_frames)
        return st.lists(anything | votes, min_size=1, max_size=20)  # one mistake ends a frame

    def messages(self) -> Strategy:
        """Any message."""
        kinds = [cls for cls in (*TAGS.values(), *STORE_MESSAGES) if cls not in (msg.Multicast, RaiseClock)]
        return st.one_of(
            *(self._columns(cls) if cls in RUNS else self._value(cls, cls in BELIEVED) for cls in kinds),
            self._multicasts(),
            self._snapshots(),
        )

    def _value(self, hint: Any, believed: bool = False) -> Strategy:  # noqa: FBT001, FBT002 - recursive
        leaves = self._leaves(believed)
        if hint in leaves:
            return leaves[hint]
        arguments = get_args(hint)
        if get_origin(hint) is tuple:
            if arguments[-1] is not Ellipsis:
                return st.tuples(*(self._value(each, believed) for each in arguments))
            return st.lists(self._value(arguments[0], believed), max_size=3).map(tuple)
        if get_origin(hint) in (Union, types.UnionType):
            return st.one_of(*(self._value(each, believed) for each in arguments))
        if hasattr(hint, "__metadata__"):
            return self._value(hint.__origin__, believed)
        if hint is Operation or hint in (Any, object):
            return st.just(Put(b"lie", b"lie"))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return st.sampled_from(hint)
        fields = {n: f for n, f in get_type_hints(hint).items() if get_origin(f) is not ClassVar}
        return st.builds(hint, **{name: self._value(field, believed) for name, field in fields.items()})

    def _columns(self, cls: type[Any]) -> Strategy:
        """Messages whose columns have one length."""
        names = RUNS[cls]
        hints = get_type_hints(cls)
        believed = cls in BELIEVED

        def build(length: int) -> Strategy:
            fields = {
                name: st.lists(
                    self._value(get_args(hint)[0], believed), min_size=length, max_size=length
                ).map(tuple)
                if name in names
                else self._value(hint, believed)
                for name, hint in hints.items()
            }
            return st.builds(cls, **fields)

        return st.integers(0, 3).flatmap(build)

    def _leaves(self, believed: bool) -> dict[Any, Strategy]:  # noqa: FBT001 - a kind of message
        replicas = [m for ms in self.groups.values() for m in ms]
        recent = self.recent
        absurd = [
            Ballot(n, leader, configuration)
            for n in (NUMBER_MAX, 1 << 62, 1 << 46)  # out of reach, however often it lies
            for leader in self.own
            for configuration in (0, 1)
        ]
        plausible = [Ballot(n, leader, 0) for n in (1, 2, 3, 50, NUMBER_JUMP) for leader in replicas]
        others = [ballot for ballot in plausible if ballot.leader not in self.own]
        ballots = [NO_BALLOT, *absurd, *others] if believed else [NO_BALLOT, *absurd, *plausible]
        groups = st.sampled_from([*self.groups, GroupId(5), GroupId(1023)])
        timestamps = [0, 1, recent - 1, recent, recent + 1, recent + (1 << 40), TIMESTAMP_MAX]
        numbers = [0, 1, 2, 255, 1 << 31, 1 << 53, NUMBER_MAX]
        return {
            GroupId: groups,
            NodeId: st.sampled_from([NodeId(name) for name in ("n1", "n2", "n3", "n9", "")]),
            ClientId: st.sampled_from([ClientId(0), ClientId(1), GATEWAY, ClientId(2**64 - 1)]),
            Timestamp: st.sampled_from([Timestamp(t) for t in timestamps]),
            int: st.sampled_from(numbers),
            float: st.sampled_from([0.0, -1.0, 1e9, float("inf"), float("nan")]),
            bool: st.booleans(),
            bytes: st.sampled_from([b"", b"lie", b"\xff" * 9]),
            str: st.sampled_from(["", "n9@127.0.0.1:9", "nowhere"]),
            types.NoneType: st.none(),
            Phase: st.sampled_from(Phase),
            ReplicaId: st.sampled_from([*replicas, ReplicaId(GroupId(0), 1, 99)]),
            Ballot: st.sampled_from(ballots),
            MessageId: st.builds(
                MessageId,
                st.sampled_from([0, 1, GATEWAY]),
                st.integers(0, 3),
                st.sampled_from([0, 1, 2**64 - 1]),
            ),
            Membership: self._memberships(),
        }

    def _memberships(self) -> Strategy:
        """Outsiders, the far future, and what cannot be; not the next step, which a member may tell."""
        found = []
        for group, members in self.groups.items():
            disks = [7, 8, 9], [m.incarnation for m in members], [self.own[0].incarnation] * 3
            for number in (0, 1, 2, 9, 1 << 60):
                for each in disks:
                    replicas = [ReplicaId(group, m.number, i) for m, i in zip(members, each, strict=True)]
                    addresses = ["n9@127.0.0.1:9"] * 3
                    found.append(Membership(Configuration(group, number, replicas, addresses)))
        return st.sampled_from(found)

    def _multicasts(self) -> Strategy:
        """Messages with the digest that they need: requests that no gateway makes, and what is none."""
        ranges = st.sampled_from([Range(b"lie", b"lif"), Range(b"lif", b"lie"), Range(b"", b"")])
        operation = st.one_of(
            st.builds(Put, st.sampled_from([b"", b"lie", b"lie" * 2000]), st.binary(max_size=5)),
            st.builds(Scan, ranges),
        )
        transaction = st.builds(
            Transaction, st.just(()), st.lists(operation, max_size=3).map(tuple), st.just(())
        )

        def request(command: Transaction, client: int, sequence: int, deadline: int) -> bytes:
            digest = digest_of_command(encode_command(command))
            return encode_request(Request(client, sequence, 0, deadline, digest, command))

        requests = st.builds(
            request,
            transaction,
            st.sampled_from([0, 1, NUMBER_MAX]),
            st.sampled_from([0, 1, NUMBER_MAX]),
            st.sampled_from([0, self.recent, NUMBER_MAX]),
        )

        def build(payload: bytes, dest: tuple[GroupId, ...], sequence: int) -> msg.Multicast:
            return msg.Multicast(
                MessageId(GATEWAY, sequence, digest_of(dest, payload)), dest, payload, sequence
            )

        dests = [(group,) for group in self.groups] + [tuple(self.groups)]
        return st.builds(
            build, st.binary(max_size=20) | requests, st.sampled_from(dests), st.integers(0, 1000)
        )

    def _vote_frames(self, ends: tuple[ReplicaId, ReplicaId]) -> Strategy:
        """Votes and outcomes of few positions, so that they contradict each other and what is executed."""
        sender, receiver = ends
        positions = st.sampled_from([Timestamp(self.recent + n) for n in (0, 1 << 40)])
        vote = st.builds(
            Vote, positions, st.just(MessageId(GATEWAY, 1, 0)), st.just(sender.group), st.booleans()
        )
        outcome = st.tuples(positions, st.booleans())
        votes = st.builds(
            Votes, st.lists(vote, max_size=1).map(tuple), st.lists(outcome, max_size=1).map(tuple)
        )
        return votes.map(lambda said: [(sender, receiver, [said])])

    def _snapshots(self) -> Strategy:
        """An empty state from far ahead, whole."""
        ahead = Timestamp(self.recent + (1 << 40))
        data = encode_checkpoint(Checkpoint(position=ahead, executed=ahead))
        return st.builds(
            SnapshotPiece,
            st.sampled_from([0, 1, NUMBER_MAX]),
            st.integers(0, 1),
            st.booleans(),
            st.booleans(),
            st.sampled_from([b"", data]),
        )


RUNS: Final[Mapping[type, Sequence[str]]] = {
    msg.Accept: ("dests", "mids", "local_ts", "payloads", "ack_below"),
    msg.Propose: ("mids", "dests", "local_ts", "decided"),
    Reply: ("mids", "positions"),
}
