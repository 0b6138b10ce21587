"""A client of bare multicast: it sends messages to the leaders of their groups, and awaits their positions.

`multicast.client.Sender` chooses receivers and retries; this module gives it connections and the time.
Fault tests and benchmarks use it. Users of the key-value store use `wbkv` instead.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from wbkv_proto.link_pb2 import Hello

from kvstore.config.addresses import Address, NodeId, parse_node_address
from kvstore.config.model import Config
from kvstore.config.secret import Secret
from kvstore.wire.connection import SWEEPS, LinkLimits
from kvstore.wire.frames import ORDERING_CODEC, PROTOCOL_VERSION, Envelope, WireError
from kvstore.wire.link import Link
from multicast.client import Sender
from multicast.errors import InvalidArgument, MulticastError
from multicast.membership import Membership
from multicast.messages import Members, Message
from multicast.topology import Topology
from multicast.types import ClientId, GroupId, MessageId, Process, ReplicaId, Timestamp

OVERHEAD: Final = 64 << 10
"""Upper bound of the bytes that a frame needs besides a payload."""


class MessageRefused(InvalidArgument):
    """A group rejected the message: its client's sequence number was used before, for another message.

    The client's id was not new; use another one. The outcome of the message is unknown: another of its groups
    may have begun to order it, and then all of them do.
    """


class MulticastClient:
    """A process that multicasts, connected to all nodes: one loop, any number of messages in flight."""

    def __init__(
        self,
        cluster_id: str,
        topology_hash: bytes,
        topology: Topology,
        directory: Mapping[ReplicaId, tuple[NodeId, Address]],
        secret: Secret,
        *,
        client: ClientId | None = None,
        retry_s: float = 0.5,
        limits: LinkLimits | None = None,
        delays_s: Mapping[NodeId, float] | None = None,
    ) -> None:
        """`client` must be a new id: otherwise groups take its first message for a retry.

        `delays_s` emulates distance: the one-way delay to each node, 0 by default.
        """
        for group in topology.groups:
            for member in topology.members(group):
                if member not in directory:
                    raise InvalidArgument(f"the directory has no address for {member}")
        for node, delay_s in (delays_s or {}).items():
            if not 0 <= delay_s < math.inf:
                raise InvalidArgument(f"delays_s: {delay_s} s to {node} is not a time")
        self._delays_s = dict(delays_s or {})
        self.client = ClientId(1 + secrets.randbelow(2**64 - 2)) if client is None else client
        self.limits = limits or LinkLimits()
        self.late = 0
        """Number of messages answered after their deadline."""
        self._sender = Sender(self.client, topology, retry_s)
        self._node_of = {replica: node for replica, (node, _) in directory.items()}
        self._secret = secret
        self._hello = Hello(
            version=PROTOCOL_VERSION, cluster=cluster_id, topology_hash=topology_hash, client=self.client
        )
        addresses = dict(directory.values())
        self._links = {node: self._link(node, addresses) for node in addresses}
        self._answers: dict[MessageId, asyncio.Future[dict[GroupId, Timestamp]]] = {}
        self._deadlines: dict[MessageId, asyncio.TimerHandle] = {}
        self._missed: set[ReplicaId] = set()
        """Replicas that were disconnected when a message was to be sent to them."""
        self._heard: dict[GroupId, None] = {}
        """Groups of which a member has reported the membership."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set while the client is open."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._flushing = False

    @classmethod
    def of(cls, config: Config, **options: Any) -> MulticastClient:
        """Return a client of a configured cluster; the options are those of the class."""
        directory = {replica: (node, config.addresses[node]) for replica, node in config.placement.items()}
        return cls(config.id, config.hash, config.topology, directory, config.secret, **options)

    async def start(self) -> None:
        """Connect. Return when every node has been tried once; raise `ConnectionError` if none accepts."""
        self._loop = asyncio.get_running_loop()
        for link in self._links.values():
            link.start()
        self._tick()
        self._sweep()
        await asyncio.gather(*(link.tried.wait() for link in self._links.values()))
        if not any(link.connected for link in self._links.values()):
            problems = "; ".join(f"{node}: {link.problem}" for node, link in self._links.items())
            await self.close()
            raise ConnectionError(f"cannot connect to any node: {problems}")

    async def close(self) -> None:
        """Disconnect. Unanswered messages may have been ordered, or may be ordered later."""
        self._loop = None
        for timer in (*self._timers.values(), *self._deadlines.values()):
            timer.cancel()
        for mid, answer in self._answers.items():
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self._unanswered(mid)} before the client was closed"))
        self._answers.clear()
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def __aenter__(self) -> MulticastClient:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def multicast(
        self, dest: Sequence[GroupId], payload: bytes, timeout_s: float | None = None
    ) -> asyncio.Future[dict[GroupId, Timestamp]]:
        """Send a message; the future resolves to its position in each of its groups.

        `TimeoutError` names the groups that have not answered. The message may still be ordered, and the
        client keeps retrying: groups can only forget what every destination has answered. `MessageRefused`
        names the group that rejected the message, and the reason.
        """
        if self._loop is None:
            raise ConnectionError("the client is closed, or was never started")
        if len(payload) > (limit := self.limits.frame - OVERHEAD):
            raise InvalidArgument(f"payload of {len(payload)} bytes does not fit a frame: at most {limit}")
        message = self._sender.multicast(dest, payload, self._loop.time())
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self._expire, message.mid, timeout_s)
            self._deadlines[message.mid] = timer
        answer = self._answers[message.mid] = self._loop.create_future()
        self._flush_soon()
        return answer

    async def memberships(self, timeout_s: float = 5.0) -> dict[GroupId, Membership]:
        """Return each group's membership, by its first answer; `TimeoutError` names silent groups."""
        groups = self._sender.topology.groups
        self._heard = {}
        deadline = asyncio.get_running_loop().time() + timeout_s
        while missing := [group for group in groups if group not in self._heard]:
            if asyncio.get_running_loop().time() > deadline:
                which = ", ".join(map(str, missing))
                raise TimeoutError(f"no member of group {which} has answered within {timeout_s:g} s")
            for group in missing:
                self._sender.ask_members(group)
            self._flush_soon()
            await asyncio.sleep(0.1)
        return {group: self._sender.topology.membership(group) for group in groups}

    def node_of(self, replica: ReplicaId) -> NodeId | None:
        """Return the node of a replica; None if unknown."""
        return self._node_of.get(replica)

    def statistics(self) -> dict[str, Any]:
        """Return the counters of each node's link: see `transport.Counts`."""
        return {
            node: {**asdict(link.counts), "connected": link.connected, "problem": link.problem}
            for node, link in self._links.items()
        }

    @property
    def in_flight(self) -> int:
        """Number of messages that some group has not answered, including those past their deadline."""
        return len(self._answers)

    def _unanswered(self, mid: MessageId) -> str:
        missing = [str(group) for group in self._sender.pending[mid].unanswered]
        noun = "group" if len(missing) == 1 else "groups"
        return f"message {mid.sequence} was not answered by {noun} {', '.join(missing)}"

    def _expire(self, mid: MessageId, timeout_s: float) -> None:
        answer = self._answers[mid]
        if not answer.done():
            answer.set_exception(TimeoutError(f"{self._unanswered(mid)} within {timeout_s} s"))

    def _receive(self, envelopes: Sequence[Envelope], _: int) -> None:
        """Handle a node's answers."""
        if self._loop is None:
            return
        now = self._loop.time()
        try:
            for sender, receiver, answers in envelopes:
                if receiver != self.client:
                    raise WireError(f"{sender} sent a message for {receiver} to client {self.client}")
                for answer in answers:
                    self._sender.step(answer, now)
                    if isinstance(answer, Members):
                        self._heard[answer.membership.group] = None
        except MulticastError as error:
            raise WireError(str(error)) from error
        finally:
            self._learn()
            self._finish()
            if self._sender.sends:
                self._flush_soon()

    def _learn(self) -> None:
        """Note the nodes of new members, and connect to nodes that were unknown."""
        for membership in self._sender.learned:
            current = membership.current
            for member, address in zip(current.members, current.addresses, strict=True):
                if (found := parse_node_address(address)) is not None:
                    self._add(member, *found)
        self._sender.learned.clear()

    def _link(self, node: NodeId, addresses: Mapping[NodeId, Address]) -> Link:
        delay_s = self._delays_s.get(node, 0.0)
        return Link(
            node, addresses, self._hello, ORDERING_CODEC, self.limits, self._secret,
            on_frame=self._receive, delay_s=delay_s,
        )  # fmt: skip

    def _add(self, member: ReplicaId, node: NodeId, address: Address) -> None:
        self._node_of[member] = node
        if node not in self._links:
            link = self._links[node] = self._link(node, {node: address})
            if self._loop is not None:
                link.start()

    def _finish(self) -> None:
        """Resolve the futures of messages that all groups have answered, or that a group has rejected."""
        for refused in self._sender.refused:
            answer = self._answers[refused.mid]
            if not answer.done():
                why = f"group {refused.group} refused message {refused.mid.sequence}: {refused.reason}"
                answer.set_exception(MessageRefused(why))
        self._sender.refused.clear()
        for mid, positions in self._sender.finished.items():
            answer = self._answers.pop(mid)
            if self._deadlines and mid in self._deadlines:
                self._deadlines.pop(mid).cancel()
            if answer.done():
                self.late += 1
            else:
                answer.set_result(positions)
        self._sender.finished.clear()

    def _flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all of this turn's messages, as one frame for each node."""
        self._flushing = False
        queues: dict[Process, list[Message]] = {}
        for receivers, message in self._sender.drain():
            for receiver in receivers:
                queue = queues.get(receiver)
                if queue is None:
                    queue = queues[receiver] = []
                queue.append(message)
        frames: dict[NodeId, list[Envelope]] = {}
        for receiver, messages in queues.items():
            if isinstance(receiver, ReplicaId) and (node := self._node_of.get(receiver)) is not None:
                if not self._links[node].connected:
                    self._missed.add(receiver)
                frames.setdefault(node, []).append((self.client, receiver, messages))
        for node, frame in frames.items():
            link = self._links[node]
            if not link.connected:
                link.wake()  # the node may have just restarted
            link.send(frame)

    def _tick(self) -> None:
        """Retry. At a fixed interval: asking the sender for its next deadline would cost more than it saves.

        If a leader's node is disconnected, its group soon has another leader: probe for it at once.
        """
        if self._loop is not None:
            self._sender.tick(self._loop.time())
            for group in self._sender.topology.groups:
                leader = self._sender.leader(group)
                if not self._links[self._node_of[leader]].connected:
                    self._sender.probe(group)
                elif leader in self._missed:
                    self._missed.remove(leader)
                    self._sender.send_again(group, self._loop.time())
            self._flush_soon()
            self._timers["tick"] = self._loop.call_later(self._sender.retry_s / 4, self._tick)

    def _sweep(self) -> None:
        if self._loop is not None:
            self._timers["sweep"] = self._loop.call_later(self.limits.idle_s / SWEEPS, self._sweep)
            for link in self._links.values():
                link.sweep()
