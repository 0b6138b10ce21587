"""What is where on a node's disk, and whose disk it is.

    disk.json   the disk's identity, and how it was left
    lock        locked by the process that uses the disk
    log/        LMDB: what acknowledgements promise
    state/      LMDB: what deliveries did

`disk.json` is not in LMDB because it must be readable when nothing else is: without fsync, a power cut may
leave an environment that cannot even be opened safely.

Keys are big-endian, so that LMDB's order is that of the numbers. Every value begins with a checksum of the
rest: LMDB has none of its own, and a disk that flips a bit must not change a promise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from google.protobuf.message import DecodeError
from wbkv_proto.log_pb2 import Run, SnapshotHead

from kvstore.node.ports import NodeId
from multicast.messages import Delivery
from multicast.types import (
    GROUPS_MAX,
    NO_TIMESTAMP,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Timestamp,
)

FORMAT: Final = 6
"""Of everything on the disk. Whoever changes any of it counts this up."""

Durability: TypeAlias = Literal["fsync", "os"]
"""Whether a commit waits for the disk, or leaves that to the operating system."""

Keeps: TypeAlias = Literal["deliveries", "store"]
"""What the state is: all deliveries, for bare multicast; or a store's tables."""


class StorageError(Exception):
    """The disk is not what it should be, or does not do what it should. Nothing can be promised on it."""


class BadSnapshot(StorageError):
    """These pieces are no snapshot. Nothing has changed."""


class LostDisk(StorageError):
    """What was promised on this disk may be gone. Whoever used it must come back as somebody else."""


# Directories

DISK: Final = "disk.json"
LOCK: Final = "lock"
LOG: Final = "log"
STATE: Final = "state"

# Sub-databases

META: Final = b"meta"
"""In both environments: `INCARNATION`, so that they cannot be mixed with another disk's."""

LOG_ROWS: Final = b"rows"
"""(group, number of the last batch in it): records that became durable together."""

LOG_BASES: Final = b"bases"
"""group: a number, and records that amount to all rows up to it. Such rows are only waiting to be deleted."""

STATE_POSITIONS: Final = b"positions"
"""group: the global timestamp of its last delivery, and how many there are."""

STATE_DELIVERIES: Final = b"deliveries"
"""(group, global timestamp of the last of them): a run of deliveries."""

STATE_CLIENTS: Final = b"clients"
"""(group, client): the low watermark of the delivered ids, if it is above 0."""

STATE_PLACES: Final = b"places"
"""(group, client, sequence, digest): global timestamp of a delivery at or above the client's watermark."""

STORE_IMAGES: Final = b"images"
"""group: everything of a store that is in no table."""

STORE_RINGS: Final = b"rings"
"""group: which of the last deliveries `STATE_DELIVERIES` still has, and how many bytes they are."""

STORE_NODES: Final = b"nodes"
"""(node, the rest of a long key, or its next part): as in a table. See `kvstore.storage.rows`."""

LOG_DATABASES: Final = (META, LOG_ROWS, LOG_BASES)
DELIVERIES_DATABASES: Final = (META, STATE_POSITIONS, STATE_DELIVERIES, STATE_CLIENTS, STATE_PLACES)
STORE_DATABASES: Final = (META, STORE_IMAGES, STORE_RINGS, STATE_DELIVERIES, STORE_NODES)

INCARNATION: Final = b"incarnation"


# Keys. A row of a group has its group's key as prefix.

_GROUP: Final = struct.Struct(">H")
_PAIR: Final = struct.Struct(">HQ")
_PLACE: Final = struct.Struct(">HQQQ")
_NUMBER: Final = struct.Struct(">Q")

group_key = _GROUP.pack


def row_key(group: GroupId, number: int) -> bytes:
    """Of a row of the log."""
    return _PAIR.pack(group, number)


def run_key(group: GroupId, last: Timestamp) -> bytes:
    """Of a run of deliveries, which ends with this one."""
    return _PAIR.pack(group, last)


def client_key(group: GroupId, client: ClientId) -> bytes:
    """Of a client's low watermark."""
    return _PAIR.pack(group, client)


def place_key(group: GroupId, mid: MessageId) -> bytes:
    """Of a delivery's place in the order."""
    return _PLACE.pack(group, *mid)


NODE_BYTES: Final = _NUMBER.size


def table_name(name: str) -> bytes:
    """The sub-database of a store's table: (group, key), or what leads to the rest of a long key."""
    return b"table " + name.encode()


def number_of_node(key: bytes) -> int:
    """Whose row this is."""
    return int.from_bytes(key[:NODE_BYTES], "big")


def group_of_key(key: bytes, where: str) -> GroupId:
    """Whose row this is."""
    group: int
    (group,) = _unpack(_GROUP, key[: _GROUP.size], where)
    if group >= GROUPS_MAX:
        raise StorageError(f"{where}: the key {key.hex()} has the group {group}")
    return GroupId(group)


def number_of_key(key: bytes, where: str) -> int:
    """What follows the group: a row's number, a run's last global timestamp, a client."""
    number: int
    _, number = _unpack(_PAIR, key, where)
    return number


def mid_of_key(key: bytes, where: str) -> MessageId:
    """Whose place this is."""
    _, client, sequence, digest = _unpack(_PLACE, key, where)
    return MessageId(client, sequence, digest)


def _unpack(form: struct.Struct, data: bytes, where: str) -> tuple[Any, ...]:
    if len(data) != form.size:
        raise StorageError(f"{where}: {data.hex()} has {len(data)} bytes, not {form.size}")
    return form.unpack(data)


# Values


def seal(data: bytes) -> bytes:
    """The value that keeps these bytes."""
    return zlib.crc32(data).to_bytes(4, "big") + data


def unseal(value: bytes, where: str) -> bytes:
    """The bytes that were sealed."""
    data = value[4:]
    if len(value) < 4 or zlib.crc32(data) != int.from_bytes(value[:4], "big"):
        raise StorageError(f"{where}: the checksum of {len(value)} bytes is wrong")
    return data


def seal_number(number: int) -> bytes:
    """The value that keeps a number."""
    return seal(_NUMBER.pack(number))


def unseal_number(value: bytes, where: str) -> int:
    """The number that was sealed."""
    number: int
    (number,) = _unpack(_NUMBER, unseal(value, where), where)
    return number


def unseal_node(value: bytes, where: str) -> bytes:
    """What the rows of a node begin with, whose number was sealed."""
    return _NUMBER.pack(unseal_number(value, where))


def seal_base(number: int, batch: bytes) -> bytes:
    """The value that keeps records that amount to all rows up to a number."""
    return seal(_NUMBER.pack(number) + batch)


def unseal_base(value: bytes, where: str) -> tuple[int, bytes]:
    """The number and the records that were sealed."""
    data = unseal(value, where)
    number: int
    (number,) = _unpack(_NUMBER, data[: _NUMBER.size], where)
    return number, data[_NUMBER.size :]


_POSITION: Final = struct.Struct(">QQ")


def seal_position(position: Timestamp, count: int) -> bytes:
    """The value that keeps a group's position, and how many deliveries that is."""
    return seal(_POSITION.pack(position, count))


def unseal_position(value: bytes, where: str) -> tuple[Timestamp, int]:
    """The position and the count that were sealed."""
    position, count = _unpack(_POSITION, unseal(value, where), where)
    return Timestamp(position), count


def seal_run(deliveries: Sequence[Delivery]) -> bytes:
    """The value that keeps deliveries that follow each other. It costs a third of what single ones would."""
    mids, dests, payloads, ack_below, local_ts, global_ts, previous_ts, mismatches = zip(
        *deliveries, strict=True
    )
    clients, sequences, digests = zip(*mids, strict=True)
    client_table = {client: index for index, client in enumerate(dict.fromkeys(clients))}
    dest_table = {dest: index for index, dest in enumerate(dict.fromkeys(dests))}
    run = Run(
        previous_ts=previous_ts[0],
        clients=client_table,
        destinations=[number for dest in dest_table for number in (len(dest), *dest)],
        client=map(client_table.__getitem__, clients),
        dest=map(dest_table.__getitem__, dests),
        sequence=sequences,
        digest=digests,
        ack_below=ack_below,
        local_ts=local_ts,
        global_ts=global_ts,
        payload=payloads,
        mismatches=compress(count(), mismatches),
    )
    return seal(run.SerializeToString())


def unseal_run(value: bytes, last: Timestamp, where: str) -> list[Delivery]:
    """The deliveries that were sealed, of which the last has this global timestamp."""
    run = _parse_run(value, where)
    columns: list[Sequence[Any]] = [
        run.client, run.sequence, run.digest, run.dest, run.payload, run.ack_below, run.local_ts,
        run.global_ts,
    ]  # fmt: skip
    clients, dests = run.clients[:], _read_destinations(run, where)
    wrong = set(run.mismatches)
    found: list[Delivery] = []
    previous = Timestamp(run.previous_ts)
    try:
        for index, row in enumerate(zip(*columns, strict=True)):
            client, sequence, digest, dest, payload, ack_below, local_ts, global_ts = row
            mid = MessageId(ClientId(clients[client]), sequence, digest)
            found.append(
                Delivery(mid, dests[dest], payload, ack_below, local_ts, global_ts, previous, index in wrong)
            )
            if global_ts <= previous:
                raise StorageError(f"{where}: {global_ts} comes after {previous}")
            previous = global_ts
    except IndexError:
        raise StorageError(f"{where}: a client or destinations are missing") from None
    except ValueError:
        raise StorageError(f"{where}: the columns of a run have different lengths") from None
    if not found or previous != last:
        raise StorageError(f"{where}: a run that ends at {previous}, not at {last}")
    return found


def run_follows(value: bytes, where: str) -> Timestamp:
    """The global timestamp that a run follows."""
    return Timestamp(_parse_run(value, where).previous_ts)


def _parse_run(value: bytes, where: str) -> Run:
    try:
        return Run.FromString(unseal(value, where))
    except DecodeError as error:
        raise StorageError(f"{where}: no run of deliveries: {error}") from None


def _read_destinations(run: Run, where: str) -> list[Destinations]:
    found: list[Destinations] = []
    rest = iter(run.destinations)
    for length in rest:
        dest = tuple(map(GroupId, islice(rest, length)))
        if len(dest) != length or max(dest, default=0) >= GROUPS_MAX:
            raise StorageError(f"{where}: {dest} are not {length} groups")
        found.append(dest)
    return found


# Snapshots: a stream of bytes, cut into pieces anywhere. Its head, with its length before it; then deliveries
# in runs, as they are stored, each with its last global timestamp and its length before it.

PIECE_BYTES: Final = 1 << 20
"""What a piece has at most."""

Row: TypeAlias = tuple[Timestamp, bytes]
"""A run of deliveries as it is stored: its last global timestamp, and its value."""

Ids: TypeAlias = list[tuple[ClientId, int, list[tuple[int, int, Timestamp]]]]
"""Delivered ids: client, low watermark, and the sequence, digest and place of what is at or above it."""

_LENGTH: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">QI")


def snapshot_head(position: Timestamp, ids: Ids) -> bytes:
    """What a snapshot begins with."""
    clients: list[int] = []
    places: list[int] = []
    digests: list[int] = []
    for client, low, above in ids:
        clients += client, low, len(above)
        for sequence, digest, global_ts in above:
            places += sequence, global_ts
            digests.append(digest)
    head = seal(
        SnapshotHead(position=position, clients=clients, places=places, digests=digests).SerializeToString()
    )
    return _LENGTH.pack(len(head)) + head


def snapshot_row(last: Timestamp, value: bytes) -> bytes:
    """How a run of deliveries follows in a snapshot."""
    return _ROW.pack(last, len(value)) + value


def read_snapshot(pieces: Iterable[bytes], where: str) -> tuple[Timestamp, Ids, list[Delivery]]:
    """What a snapshot has: all of it, or `BadSnapshot`. Every delivery names the one before it."""
    data = memoryview(b"".join(pieces))
    if len(data) < _LENGTH.size:
        raise BadSnapshot(f"{where}: {len(data)} bytes are no snapshot")
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length
    if at > len(data):
        raise BadSnapshot(f"{where} ends in its head")
    try:
        head = SnapshotHead.FromString(unseal(bytes(data[_LENGTH.size : at]), where))
    except (DecodeError, StorageError) as error:
        raise BadSnapshot(f"{where} has no head: {error}") from None
    ids = _read_ids(head, where)
    deliveries: list[Delivery] = []
    last = NO_TIMESTAMP
    while at < len(data):
        row = bytes(data[at : at + _ROW.size])
        end, length = _ROW.unpack(row) if len(row) == _ROW.size else (0, len(data))
        at += _ROW.size + length
        if at > len(data):
            raise BadSnapshot(f"{where} ends in the deliveries after {last}")
        try:
            run = unseal_run(bytes(data[at - length : at]), end, f"{where}, deliveries up to {end}")
        except StorageError as error:
            raise BadSnapshot(str(error)) from None
        if run[0].previous_ts != last:
            raise BadSnapshot(f"{where}: a run comes after {last}, not after {run[0].previous_ts}")
        last = end
        deliveries += run
    if last != head.position:
        raise BadSnapshot(f"{where} ends at {last}, before its position {head.position}")
    return last, ids, deliveries


def _read_ids(head: SnapshotHead, where: str) -> Ids:
    clients, numbers, digests = head.clients[:], head.places[:], head.digests[:]
    places: list[Any] = list(zip(numbers[0::2], digests, numbers[1::2], strict=False))
    if len(clients) % 3 or len(numbers) != 2 * len(digests) or sum(clients[2::3]) != len(places):
        raise BadSnapshot(f"{where}: its {len(places)} places do not fit its clients")
    rest = iter(places)
    rows: Iterator[Any] = zip(*[iter(clients)] * 3, strict=True)
    return [(client, low, list(islice(rest, length))) for client, low, length in rows]


# Identity


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose disk this is. None of it ever changes."""

    cluster: str
    node: NodeId
    incarnation: int
    """Random, in 1..2^63-1: a node that comes back with another disk is not the same replica."""
    durability: Durability = "fsync"
    keeps: Keeps = "deliveries"
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name in ("cluster", "node"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a name, not {getattr(self, name)!r}")
        if self.durability not in get_args(Durability):
            raise ValueError(f'durability must be "fsync" or "os", not {self.durability!r}')
        if self.keeps not in get_args(Keeps):
            raise ValueError(f'keeps must be "deliveries" or "store", not {self.keeps!r}')
        if type(self.incarnation) is not int or not 0 < self.incarnation < 2**63:
            raise ValueError(f"incarnation must be in 1..2^63-1, not {self.incarnation!r}")

    @classmethod
    def new(
        cls, cluster: str, node: NodeId, durability: Durability = "fsync", keeps: Keeps = "deliveries"
    ) -> Identity:
        """A disk that never was."""
        return cls(cluster, node, secrets.randbelow(2**63 - 1) + 1, durability, keeps)


@dataclass(frozen=True, slots=True)
class Left:
    """How a disk was left."""

    clean: bool = True
    boot: str = ""
    """Of the operating system, when the disk was last in use."""

    def __post_init__(self) -> None:
        if type(self.clean) is not bool or not isinstance(self.boot, str):
            raise ValueError(f"clean and boot cannot be {self.clean!r} and {self.boot!r}")


def read_disk(path: Path) -> tuple[Identity, Left]:
    """What `disk.json` says. Refuses a format that this program does not know."""
    file = path / DISK
    try:
        said: Any = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise StorageError(f"{path} has no disk: there is no {DISK}") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StorageError(f"{file} is not JSON: {error}") from error
    if not isinstance(said, dict) or "format" not in said:
        raise StorageError(f"{file} does not say which format the disk has")
    if said["format"] != FORMAT:
        raise StorageError(f"{path} has format {said['format']}, but this program knows only format {FORMAT}")
    try:
        left = Left(said.pop("clean"), said.pop("boot"))
        identity = Identity(**said)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{file} is no disk's identity: {error}") from error
    return identity, left


def write_disk(path: Path, identity: Identity, left: Left) -> None:
    """Replace `disk.json`, durably: after a crash it is either the old one or this."""
    said = dataclasses.asdict(identity) | dataclasses.asdict(left)
    replacement = path / f"{DISK}.new"
    try:
        with replacement.open("w") as file:
            json.dump(said, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(path / DISK)
        sync_directory(path)
    except OSError as error:
        raise StorageError(f"{path / DISK} cannot be written: {error.strerror}") from error


def check_owner(path: Path, identity: Identity, cluster: str, node: NodeId, keeps: Keeps) -> None:
    """Refuse a disk of another cluster or node, or for something else."""
    if identity.cluster != cluster:
        raise StorageError(f"{path} is a disk of cluster {identity.cluster!r}, not of {cluster!r}")
    if identity.node != node:
        raise StorageError(f"{path} is the disk of node {identity.node!r}, not of {node!r}")
    if identity.keeps != keeps:
        raise StorageError(f"{path} is a disk for {identity.keeps!r}, not for {keeps!r}")


def check_incarnation(path: Path, identity: Identity, value: bytes) -> None:
    """Refuse an environment that came from another disk. The value is what it has as `INCARNATION`."""
    found = unseal_number(value, f"{path}, incarnation")
    if found != identity.incarnation:
        raise StorageError(f"{path} is of incarnation {found:x}, but its disk of {identity.incarnation:x}")


def check_lost(path: Path, identity: Identity, left: Left, boot: str) -> None:
    """Refuse a disk that nobody synced, if the machine has stopped since."""
    if identity.durability == "os" and not left.clean and left.boot != boot:
        raise LostDisk(
            f"{path} was in use, with durability 'os', when its machine stopped: it may lack promises"
        )


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Which run of the operating system this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
