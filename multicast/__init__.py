"""Atomic multicast: messages to any set of groups, delivered everywhere in one total order.

The package orders messages and does nothing else: no sockets, files, threads, clocks or global randomness.
A `Protocol` is one replica of one group, as a state machine. A *host* feeds it messages and the time, and
drains a `Ready`: what to persist, send and deliver. One class runs under the simulator and in production.

**The contract of a host.** After each `step`, `receive` or `tick`, the host drains `ready` and does this:

1. It hands `persist` to the disk, which makes batches durable in the order in which it gets them.
2. It sends `send` at once: nothing in it reveals more than is already durable.
3. It sends `promise` once `persist` of this `Ready`, and of every `Ready` before it, is durable.
4. Messages to the replica itself occur only in `promise`; the host returns them with `step` when it sends the
   rest.
5. It gives `deliver` to the application, in order, and answers `duplicates` with the stored results.
6. What the application makes durable, an installed snapshot included, becomes durable no earlier than
   `persist` of the `Ready` that delivered it, and of every `Ready` before that.
7. It sends every replica in `transfers` a snapshot, under the number given there, or the missing deliveries,
   and notes from `learned` where members are. It installs only a snapshot that the replica `awaits`.
8. It calls `tick` no later than `wake_at`.

Once the application has durably executed everything up to a position, and the records of the `Ready` that
delivered it are durable too, the host reports that position with `executed`. Links are FIFO within a
connection. A new connection between two processes supersedes the old one, and may lose messages between them.

A minimal host: one group of three replicas, a network in memory, and a disk that is durable at once.

>>> import random
>>> from collections import deque
>>> from multicast import ClientId, GroupId, Reply, Sender, Start, Topology, WhiteBox
>>> topology = Topology.uniform(groups=1, replicas=3)
>>> replicas = {
...     me: WhiteBox(Start(me, topology, random.Random(str(me)), now=0.0))
...     for me in topology.members(GroupId(0))
... }
>>> disks = {me: [] for me in replicas}
>>> client, network = Sender(ClientId(1), topology), deque()
>>> def drain(replica):
...     ready = replica.ready()
...     network.extend((replica.me, *send) for send in ready.send)
...     disks[replica.me] += ready.persist  # a real host writes and syncs here, ...
...     network.extend((replica.me, *send) for send in ready.promise)  # ... and only then promises
...     for delivery in ready.deliver:
...         print(replica.me, "delivers", delivery.payload)
...         if replica.answers_clients:
...             reply = Reply((delivery.mid,), replica.me.group, (delivery.global_ts,))
...             network.append((replica.me, [delivery.mid.client], reply))
...         replica.executed(delivery.global_ts)  # only once the application's state is durable
>>> def run(now):
...     network.extend((client.client, *send) for send in client.drain())
...     for replica in replicas.values():
...         replica.tick(now)
...         drain(replica)
...     while network:
...         sender, receivers, message = network.popleft()
...         for receiver in receivers:
...             if receiver in replicas:
...                 replicas[receiver].step(sender, message, now)
...                 drain(replicas[receiver])
...             else:
...                 client.step(message, now)
>>> run(now=0.0)  # the replicas elect a leader
>>> message = client.multicast([GroupId(0)], b"hello", now=0.1)
>>> run(now=0.1)
g0r0 delivers b'hello'
g0r1 delivers b'hello'
g0r2 delivers b'hello'
>>> list(client.finished) == [message.mid]
True

**What a host must never do**

- Send a `promise` before its records are durable, or make batches durable out of order: a restarted replica
  would have forgotten what other replicas rely on.
- Report `executed` before the effects are durable: all groups may then forget a message that a crash undoes.
- Drop, reorder or repeat a delivery, or change a message: one object may be on its way to several receivers.
- Start a replica on a disk that lost anything. A new disk is a new replica: it needs another `incarnation`.
- Start two replicas with one `ReplicaId`, or repeat an earlier life's random numbers in `Start.rng`.
- Let `now` fall, or go on using a replica that has raised `InvariantBroken`.

A host may lose messages, delay them and reset connections, restart a replica at any time from its `Durable`
and `Checkpoint`, and nominate leaders as it likes: that costs time, never safety. A message that no correct
peer sends raises `PeerViolation`, an invalid argument `InvalidArgument`; `step` then changes nothing.

**Where to look**

`types`, `messages`               the nouns, and the messages between processes
`membership`, `topology`          the members of a group over time, and what one process knows of all groups
`claims`                          which memberships that others tell are believed
`protocol`, `durable`             the interface to hosts, and what they keep on disk
`process`                         what a process does under any of the protocols
`whitebox`                        the white-box protocol of Gotsman, Lefort and Chockler
`skeen`, `consensus`              Skeen's protocol, fault-tolerant Skeen, FastCast; their consensus
`election`, `quorum_time`         the leader selection service; the time of day that a quorum has reached
`queue`, `delivered`, `history`   ordered delivery, duplicate suppression, catching up
`client`, `numbering`, `retries`  the multicasting process, its sequence numbers, when to send again
`sim`                             a simulator that tries to refute the protocols

**How to add a protocol.** Derive a class from `process.Replica` and implement its abstract methods:
`new_entry` (what a process counts for one message), `_send_proposal`, `_repeat` and `_flush`. Register
handlers of new messages in `_handlers`, and append their classes to `messages.Message`. Commit messages in
`queue`, then call `_deliver_committed`. Recovery, catch-up, collection and membership are inherited. Then

1. add the class to `PROTOCOLS`: commands, configurations and benchmarks find it there;
2. add its own invariants to `sim.invariants.invariants_of`, and its module to the layers in `pyproject.toml`;
3. give new messages tags in `kvstore/wire/frames.py`, a case in `messages.about` and examples in the codec's
   tests; new records a case in `durable.Durable.apply` and a tag in `kvstore/storage/records.py`;
4. join the tests: latencies and costs in `tests/paper/test_delays.py`, mutants and schedules beside
   `skeen_mutants.py` and `skeen_schedules.py`. `tests/sim/test_simulation.py` runs all of `PROTOCOLS`.
"""

from typing import Final

from multicast.client import MulticastRefused, Reply, Sender
from multicast.durable import Checkpoint, Durable, Record
from multicast.errors import InvalidArgument, InvariantBroken, MulticastError, PeerViolation
from multicast.membership import Configuration, Membership
from multicast.messages import Delivery, Message, Multicast
from multicast.protocol import Protocol, Ready, Send, Start, Timing
from multicast.skeen import EagerFastCast, EagerFtSkeen, FastCast, FtSkeen, Skeen
from multicast.topology import Topology
from multicast.types import Ballot, ClientId, GroupId, MessageId, Phase, Process, ReplicaId, Status, Timestamp
from multicast.whitebox import DeliverEverywhere, WhiteBox

PROTOCOLS: Final[dict[str, type[Protocol]]] = {
    "whitebox": WhiteBox,
    "fastcast": FastCast,
    "ftskeen": FtSkeen,
    "skeen": Skeen,
}
"""Every ordering protocol, by its name in commands and configurations."""

VARIANTS: Final[dict[str, type[Protocol]]] = {
    "whitebox-everywhere": DeliverEverywhere,
    "fastcast-eager": EagerFastCast,
    "ftskeen-eager": EagerFtSkeen,
}
"""Protocols that improve on the paper's: see docs/protocol.md."""

__all__ = [
    "PROTOCOLS",
    "VARIANTS",
    "Ballot",
    "Checkpoint",
    "ClientId",
    "Configuration",
    "DeliverEverywhere",
    "Delivery",
    "Durable",
    "FastCast",
    "FtSkeen",
    "GroupId",
    "InvalidArgument",
    "InvariantBroken",
    "Membership",
    "Message",
    "MessageId",
    "Multicast",
    "MulticastError",
    "MulticastRefused",
    "PeerViolation",
    "Phase",
    "Process",
    "Protocol",
    "Ready",
    "Record",
    "ReplicaId",
    "Reply",
    "Send",
    "Sender",
    "Skeen",
    "Start",
    "Status",
    "Timestamp",
    "Timing",
    "Topology",
    "WhiteBox",
]
