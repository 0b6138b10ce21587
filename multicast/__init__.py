"""Atomic multicast: messages to any set of groups, delivered everywhere in one total order.

The package orders messages and does nothing else: no sockets, files, threads, clocks or global
randomness. A host feeds a `Protocol` messages and the time, and drains a `Ready`: records to make durable,
messages to send at once, messages to send once the records are durable, deliveries for the application, and
when to call again. `multicast.protocol` states that contract in full.

Where to look:

`types`, `messages`               the nouns, and what processes say
`membership`, `topology`          who is in a group over time, and what one process knows of all groups
`protocol`, `durable`             the contract with hosts, and what they keep on disk
`process`                         what a process does under any of the protocols
`whitebox`                        the white-box protocol of Gotsman, Lefort and Chockler
`skeen`, `consensus`              Skeen's protocol, fault-tolerant Skeen, FastCast; their consensus
`election`                        the leader selection service
`queue`, `delivered`, `history`   ordered delivery, duplicate suppression, catching up
`client`                          the multicasting process
`sim`                             a simulator that tries to refute the protocols
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
"""Every ordering protocol, by the name by which commands and configurations call it."""

VARIANTS: Final[dict[str, type[Protocol]]] = {
    "whitebox-everywhere": DeliverEverywhere,
    "fastcast-eager": EagerFastCast,
    "ftskeen-eager": EagerFtSkeen,
}
"""Better than the paper has them: see docs/protocol.md."""

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
