"""The handshake: both sides of a connection prove that they know the cluster's secret.

A proof is an HMAC-SHA256 under the secret. It covers its direction, the protocol's version, and fresh nonces
of both sides; the dialling side's also covers its Hello (role, ids, cluster, topology), and the last one the
name of the node that accepts. So a proof counts in one direction of one connection only: recorded proofs are
useless, and a proof cannot be reflected. The accepting side proves itself first, so a node tells its Hello
only to a peer that knows the secret; and a peer that does not learns no more than the protocol's version.

This authenticates the peer when the connection begins. It encrypts nothing, and does not protect later frames
against an attacker who can change the bytes on the path between two nodes.
"""

from __future__ import annotations

import secrets
from typing import Final

from google.protobuf.message import DecodeError
from wbkv_proto.link_pb2 import Answer, Challenge, Hello, Introduction, Opening, Reason, Refusal, Welcome

from kvstore.config.addresses import NodeId
from kvstore.config.secret import Secret
from kvstore.wire.frames import PROTOCOL_VERSION, WireError

NONCE_BYTES: Final = 32

_ACCEPTS: Final = b"wbkv link: the accepting side"
_DIALS: Final = b"wbkv link: the dialling side"
_WELCOMES: Final = b"wbkv link: welcome"


class Rejected(Exception):
    """A peer that is not admitted, and why."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


class _Side:
    """What both sides share: the secret, and both nonces."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._own = secrets.token_bytes(NONCE_BYTES)
        self._nonces: tuple[bytes, bytes] = (b"", b"")
        """Of the dialling side, and of the accepting side."""

    def _proof(self, direction: bytes, *parts: bytes) -> bytes:
        return self._secret.proof(*self._bound(direction, *parts))

    def _check(self, proof: bytes, direction: bytes, *parts: bytes) -> bool:
        return self._secret.proves(proof, *self._bound(direction, *parts))

    def _bound(self, direction: bytes, *parts: bytes) -> tuple[bytes, ...]:
        return direction, PROTOCOL_VERSION.to_bytes(4, "big"), *self._nonces, *parts


class DiallingSide(_Side):
    """The handshake of a connection that this process dialled."""

    def __init__(self, secret: Secret, hello: Hello) -> None:
        super().__init__(secret)
        self._hello = hello.SerializeToString()
        self._to = hello.to
        self.is_done = False
        self._challenged = False

    def opening(self) -> bytes:
        """Return the first message."""
        return Opening(version=PROTOCOL_VERSION, nonce=self._own).SerializeToString()

    def answered(self, data: bytes) -> bytes | None:
        """Handle an Answer; return the message that follows it, if any.

        Raises `Rejected` if the peer rejects this process, or does not prove that it knows the secret;
        `WireError` for bytes that no node sends.
        """
        try:
            answer = Answer.FromString(data)
        except DecodeError as error:
            raise WireError(f"not an answer: {error}") from None
        if answer.HasField("refusal"):
            raise Rejected(answer.refusal.reason, f"rejected by the peer: {answer.refusal.text!r:.300}")
        if not self._challenged and answer.HasField("challenge"):
            return self._introduce(answer.challenge)
        if not self._challenged or not answer.HasField("welcome"):
            raise WireError("the answer is not the next step of the handshake")
        if not self._check(answer.welcome.proof, _WELCOMES, self._hello, self._to.encode()):
            raise _unproven()
        self.is_done = True
        return None

    def _introduce(self, challenge: Challenge) -> bytes:
        self._nonces = self._own, challenge.nonce
        if len(challenge.nonce) != NONCE_BYTES or not self._check(challenge.proof, _ACCEPTS):
            raise _unproven()
        self._challenged = True
        return Introduction(hello=self._hello, proof=self._proof(_DIALS, self._hello)).SerializeToString()


class AcceptingSide(_Side):
    """The handshake of a connection that this node accepted."""

    def __init__(self, secret: Secret, me: NodeId) -> None:
        super().__init__(secret)
        self._me = me
        self._hello = b""
        self.is_open = False

    def opened(self, data: bytes) -> bytes:
        """Handle the Opening; return the Answer. Raises `Rejected` for another version."""
        try:
            opening = Opening.FromString(data)
        except DecodeError as error:
            raise WireError(f"not an Opening: {error}") from None
        if opening.version != PROTOCOL_VERSION:
            text = f"protocol version {opening.version}; here it is {PROTOCOL_VERSION}"
            raise Rejected(Reason.WRONG_VERSION, text)
        if len(opening.nonce) != NONCE_BYTES:
            raise WireError(f"an Opening with a nonce of {len(opening.nonce)} bytes, not {NONCE_BYTES}")
        self._nonces = opening.nonce, self._own
        self.is_open = True
        challenge = Challenge(nonce=self._own, proof=self._proof(_ACCEPTS))
        return Answer(challenge=challenge).SerializeToString()

    def introduced(self, data: bytes) -> Hello:
        """Handle the Introduction; return its Hello. Raises `Rejected` if its proof is wrong."""
        try:
            introduction = Introduction.FromString(data)
            if not self._check(introduction.proof, _DIALS, introduction.hello):
                raise _unproven()
            self._hello = introduction.hello
            return Hello.FromString(introduction.hello)
        except DecodeError as error:
            raise WireError(f"not an Introduction: {error}") from None

    def welcome(self) -> bytes:
        """Return the Answer that ends the handshake."""
        proof = self._proof(_WELCOMES, self._hello, self._me.encode())
        return Answer(welcome=Welcome(proof=proof)).SerializeToString()


def refusal(reason: Reason, text: str) -> bytes:
    """Return the Answer to a peer that is not admitted."""
    return Answer(refusal=Refusal(reason=reason, text=text)).SerializeToString()


def _unproven() -> Rejected:
    text = "the peer does not prove that it knows this cluster's secret (cluster.secret in cluster.toml)"
    return Rejected(Reason.WRONG_SECRET, text)
