"""A run of deliveries as one value: columns, which cost a third of what single deliveries would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count, islice
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from wbkv_proto.log_pb2 import Run

from kvstore.storage.checksum import seal, seed_of, unseal
from kvstore.storage.errors import DamagedRow
from kvstore.storage.keys import STATE_DELIVERIES, run_key
from multicast.messages import Delivery
from multicast.types import GROUPS_MAX, ClientId, Destinations, GroupId, MessageId, Timestamp


def seal_run(group: GroupId, deliveries: Sequence[Delivery]) -> bytes:
    """Return the value of a group's deliveries that follow each other."""
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
    return seal(run.SerializeToString(), _seed(group, global_ts[-1]))


def _seed(group: GroupId, last: Timestamp) -> int:
    return seed_of(STATE_DELIVERIES, run_key(group, last))


def unseal_run(value: bytes, group: GroupId, last: Timestamp, where: str) -> list[Delivery]:
    """Return the deliveries that were sealed, of which the last has this global timestamp."""
    run = _parse_run(value, group, last, where)
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
                raise DamagedRow(f"{where}: {global_ts} comes after {previous}")
            previous = global_ts
    except IndexError:
        raise DamagedRow(f"{where}: a client or destinations are missing") from None
    except ValueError:
        raise DamagedRow(f"{where}: the columns of a run have different lengths") from None
    if not found or previous != last:
        raise DamagedRow(f"{where}: a run that ends at {previous}, not at {last}")
    return found


def run_follows(value: bytes, group: GroupId, last: Timestamp, where: str) -> Timestamp:
    """Return the global timestamp that a run follows."""
    return Timestamp(_parse_run(value, group, last, where).previous_ts)


def _parse_run(value: bytes, group: GroupId, last: Timestamp, where: str) -> Run:
    try:
        return Run.FromString(unseal(value, where, _seed(group, last)))
    except DecodeError as error:
        raise DamagedRow(f"{where}: not a run of deliveries: {error}") from None


def _read_destinations(run: Run, where: str) -> list[Destinations]:
    found: list[Destinations] = []
    rest = iter(run.destinations)
    for length in rest:
        dest = tuple(map(GroupId, islice(rest, length)))
        if len(dest) != length or max(dest, default=0) >= GROUPS_MAX:
            raise DamagedRow(f"{where}: {dest} are not {length} groups")
        found.append(dest)
    return found


Row: TypeAlias = tuple[Timestamp, bytes]
"""A run of deliveries as it is stored: its last global timestamp, and its value."""
