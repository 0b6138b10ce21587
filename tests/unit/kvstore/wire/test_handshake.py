"""Handshakes: a peer that does not know the secret learns nothing, and nothing recorded counts again."""

from __future__ import annotations

import asyncio
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wbkv_proto.link_pb2 import Answer, Hello, Introduction, Opening, Reason

from kvstore.config.secret import Secret
from kvstore.wire.connection import HELLO_MAX
from kvstore.wire.frames import PROTOCOL_VERSION, WireError
from kvstore.wire.handshake import NONCE_BYTES, AcceptingSide, DiallingSide, Rejected
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    CLUSTER,
    HASH,
    N1,
    N2,
    SECRET,
    Node,
    Wire,
    framed,
    hello,
    listener,
    nodes,
    number,
    replica,
    until,
)

OTHER = Secret("07" * 32)


def shake(dialling: DiallingSide, accepting: AcceptingSide) -> Hello:
    """Both sides agree."""
    introduction = dialling.answered(accepting.opened(dialling.opening()))
    assert introduction is not None
    found = accepting.introduced(introduction)
    assert dialling.answered(accepting.welcome()) is None
    assert dialling.is_done
    return found


def test_both_sides_authenticate_and_agree_on_the_hello() -> None:
    said = hello(N2, incarnation=5)
    assert shake(DiallingSide(SECRET, said), AcceptingSide(SECRET, N1)) == said


def test_each_side_rejects_another_secret() -> None:
    with pytest.raises(Rejected, match="secret") as found:
        shake(DiallingSide(SECRET, hello(N2)), AcceptingSide(OTHER, N1))
    assert found.value.reason == Reason.WRONG_SECRET
    accepting = AcceptingSide(SECRET, N1)
    accepting.opened(DiallingSide(OTHER, hello(N2)).opening())
    said = hello(N2).SerializeToString()
    with pytest.raises(Rejected, match="secret"):
        accepting.introduced(Introduction(hello=said, proof=OTHER.proof(said)).SerializeToString())


def test_recorded_messages_do_not_count_again() -> None:
    dialling, accepting = DiallingSide(SECRET, hello(N2)), AcceptingSide(SECRET, N1)
    opening = dialling.opening()
    challenge = accepting.opened(opening)
    introduction = dialling.answered(challenge) or b""
    accepting.introduced(introduction)
    welcome = accepting.welcome()
    again = AcceptingSide(SECRET, N1)
    again.opened(opening)
    with pytest.raises(Rejected):
        again.introduced(introduction)
    with pytest.raises(Rejected):
        DiallingSide(SECRET, hello(N2)).answered(challenge)
    other = DiallingSide(SECRET, hello(N2))
    other.answered(AcceptingSide(SECRET, N1).opened(other.opening()))
    with pytest.raises(Rejected):
        other.answered(welcome)


def test_proofs_cannot_be_reflected() -> None:
    """A peer that does not know the secret sends back our own nonces and proofs."""
    dialling = DiallingSide(SECRET, hello(N2))
    nonce = Opening.FromString(dialling.opening()).nonce
    accepting = AcceptingSide(SECRET, N1)
    challenge = Answer.FromString(accepting.opened(dialling.opening())).challenge
    said = hello(N2).SerializeToString()
    for proof in (challenge.proof, b"", bytes(32)):
        with pytest.raises(Rejected):
            accepting.introduced(Introduction(hello=said, proof=proof).SerializeToString())
    # A node is made to prove itself as the accepting side: that proves nothing in the other direction.
    oracle = AcceptingSide(SECRET, N2)
    opening = Opening(version=PROTOCOL_VERSION, nonce=nonce).SerializeToString()
    reflected = Answer.FromString(oracle.opened(opening)).challenge
    with pytest.raises(Rejected):
        accepting.introduced(Introduction(hello=said, proof=reflected.proof).SerializeToString())


def test_a_hello_cannot_be_changed_on_its_way_and_is_for_one_node() -> None:
    dialling, accepting = DiallingSide(SECRET, hello(N2)), AcceptingSide(SECRET, N1)
    introduction = Introduction.FromString(dialling.answered(accepting.opened(dialling.opening())) or b"")
    for said in (hello(N1), hello(client=CLIENT), hello(N2, to=N2), hello(N2, cluster="another")):
        changed = Introduction(hello=said.SerializeToString(), proof=introduction.proof)
        with pytest.raises(Rejected):
            accepting.introduced(changed.SerializeToString())
    dialling, accepting = DiallingSide(SECRET, hello(N2, to=N1)), AcceptingSide(SECRET, N2)
    with pytest.raises(Rejected):
        shake(dialling, accepting)


def test_steps_cannot_be_left_out() -> None:
    accepting = AcceptingSide(SECRET, N1)
    early = DiallingSide(SECRET, hello(N2))
    with pytest.raises((WireError, Rejected)):
        early.answered(accepting.welcome())
    dialling = DiallingSide(SECRET, hello(N2))
    challenge = accepting.opened(dialling.opening())
    assert dialling.answered(challenge)
    with pytest.raises(WireError):
        dialling.answered(challenge)
    for nonce in (b"", bytes(NONCE_BYTES - 1), bytes(NONCE_BYTES + 1)):
        with pytest.raises(WireError, match="nonce"):
            AcceptingSide(SECRET, N1).opened(
                Opening(version=PROTOCOL_VERSION, nonce=nonce).SerializeToString()
            )


@given(st.binary(max_size=200))
def test_any_bytes_are_rejected_by_every_step(data: bytes) -> None:
    accepting, dialling = AcceptingSide(SECRET, N1), DiallingSide(SECRET, hello(N2))
    for step in (dialling.answered, accepting.opened, accepting.introduced):
        with pytest.raises((WireError, Rejected)):
            step(data)


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret.new()
    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert secret.reveal() not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(ValueError, match="hexadecimal") as found:
        Secret("feedbeef")
    assert "feedbeef" not in str(found.value)
    assert secret == Secret(secret.reveal())
    assert secret != Secret.new()


@pytest.mark.parametrize("client", [False, True])
async def test_a_peer_without_the_secret_learns_nothing(
    client: bool,  # noqa: FBT001 - a case
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it is told names neither the cluster nor its topology; and it is counted, and logged once."""
    async with nodes(N1, absent=[N2]) as (a,):
        told = b""
        caplog.clear()
        said = hello(client=CLIENT) if client else hello(N2)
        for _ in range(3):
            wire = await Wire.dial(a.address)
            wire.write(framed(DiallingSide(OTHER, said).opening()))
            told += await wire.read()
            guess = Introduction(hello=said.SerializeToString(), proof=bytes(32))
            wire.write(framed(guess.SerializeToString()))
            answer = await wire.answer()
            assert answer.refusal.reason == Reason.WRONG_SECRET
            told += answer.SerializeToString()
            await wire.ended()
        for version in (0, 5, PROTOCOL_VERSION + 1):
            wire = await Wire.dial(a.address)
            wire.write(framed(hello(N2, version=version).SerializeToString()))  # as older nodes begin
            answer = await wire.answer()
            assert answer.refusal.reason == Reason.WRONG_VERSION
            told += answer.SerializeToString()
            await wire.ended()
        for word in (CLUSTER.encode(), HASH, HASH.hex().encode(), SECRET.reveal().encode()):
            assert word not in told
        assert a.count("unproven") == 3
        assert a.count("refusals") == 6
        assert sum("secret" in record.getMessage() for record in caplog.records) == 1
        assert SECRET.reveal() not in caplog.text
        assert not a.disks


async def test_nodes_with_two_secrets_reject_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """Neither tells the other its Hello."""
    heard: list[bytes] = []

    async def impostor(wire: Wire) -> None:
        heard.append(await wire.read())
        wire.write(framed(AcceptingSide(OTHER, N2).opened(heard[-1])))
        heard.append(await wire.read())

    async with nodes(N1, absent=[N2]) as (a,), listener(impostor) as address:
        a.peers[N2] = address
        await until(lambda: a.count("refused", N2) > 3)
        assert "cluster.secret" in a.count("problem", N2)
        await until(lambda: len(heard) > 3)
        assert not any(CLUSTER.encode() in data or HASH in data for data in heard)
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        b = Node(N2, dict(a.peers), secret=OTHER)
        b.address = await b.transport.start()
        await until(lambda: b.count("refused", N1) > 3)
        assert not a.frames
        await b.transport.close()


async def test_an_unauthenticated_peer_cannot_make_a_node_keep_more_than_a_hello() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        for start in (HELLO_MAX + 1, 16 << 20, 2**32 - 1):
            wire = await Wire.dial(a.address)
            wire.write(start.to_bytes(4, "big") + bytes(1000))
            await wire.ended()
        assert a.count("bad_frames") == 3
        wire = await Wire.dial(a.address)
        wire.write(framed(DiallingSide(OTHER, hello(N2)).opening()))
        await wire.read()
        wire.write((HELLO_MAX + 1).to_bytes(4, "big") + bytes(1000))
        await wire.ended()
        assert a.count("bad_frames") == 4


async def test_a_flood_of_strangers_does_not_keep_nodes_out() -> None:
    """Connections that do not shake hands are dropped, the oldest first."""
    async with nodes(N1, absent=[N2]) as (a,):
        limit = a.transport.limits.strangers
        flood = [await Wire.dial(a.address) for _ in range(limit + 20)]
        peer = await Wire.dial(a.address, hello(N2))
        peer.say(replica(N2), replica(N1), number(1))
        await until(lambda: a.numbers(N2) == [1])
        await until(lambda: a.count("connected") <= limit)
        for wire in (*flood, peer):
            wire.abort()
        await asyncio.sleep(0)
