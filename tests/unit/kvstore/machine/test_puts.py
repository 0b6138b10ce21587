"""Transactions of puts alone: they are executed by a shorter way, with the same rows as by a `Writer`."""

from __future__ import annotations

import random

import pytest

from kvstore.machine.codec import RequestDecoder, encode_request
from kvstore.machine.commands import Request
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.request import Put, Transaction
from kvstore.machine.versions import Version, Versions, Writer


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_are_those_of_a_writer(seed: int) -> None:
    rng = random.Random(seed)
    one, other = Versions(MemoryMap(), MemoryMap()), Versions(MemoryMap(), MemoryMap())
    floor = 0
    for revision in range(1, 60):
        floor = rng.choice((floor, floor, rng.randint(floor, revision)))
        keys = rng.sample([b"a", b"b", b"c", b"d"], rng.randint(0, 3))
        writer = Writer(other, revision, floor)
        if rng.random() < 0.3:
            removed = Writer(one, revision, floor)
            for key in keys:
                assert writer.delete(key) == removed.delete(key)
            assert writer.finish() == removed.finish()
            continue
        puts = [(key, b"%d" % revision) for key in keys]
        for put in puts:
            writer.put(*put)
        assert one.put_all(puts, revision, floor) == writer.finish()
    assert one._latest == other._latest
    assert one._history == other._history


def test_a_removal_below_the_floor_is_forgotten_and_a_value_there_is_taken_along() -> None:
    versions = Versions(MemoryMap(), MemoryMap())
    writer = Writer(versions, 1, 0)
    writer.put(b"kept", b"old")
    writer.put(b"gone", b"old")
    writer.finish()
    writer = Writer(versions, 2, 0)
    writer.delete(b"gone")
    writer.finish()
    gone, kept = versions.put_all([(b"kept", b"new"), (b"gone", b"new")], 5, 3)
    assert (gone.key, gone.previous, gone.base, gone.version) == (b"gone", 0, None, 1)
    assert (kept.key, kept.previous, kept.base) == (b"kept", 1, Version(b"old", 1, 1, 1))


def test_a_message_to_two_groups_of_a_node_is_decoded_once() -> None:
    decode = RequestDecoder()
    request = Request(1, 2, 0, 9, 7, Transaction(then=(Put(b"k", b"v"),)))
    payload = encode_request(request)
    first = decode(payload, 2)
    assert first == request
    assert decode(bytes(bytearray(payload)), 2) is first
    assert decode(payload, 2) is not first, "it is not kept for ever"
    assert decode(payload) == decode(payload) == request
