"""What a node's recorder writes, line by line, and what it does when it cannot."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvstore.config.addresses import NodeId
from kvstore.machine.codec import encode_request
from kvstore.machine.commands import Command, Request, Tick, is_own, own_client
from kvstore.machine.request import INT64_MAX, Put, Transaction
from kvstore.node.recorder import PIECE_BYTES, DeliveryRecorder
from multicast.membership import MEMBERSHIP
from multicast.messages import Delivery
from multicast.types import ClientId, Destinations, GroupId, MessageId, Timestamp

NODE = NodeId("n1")
A, B = GroupId(0), GroupId(1)
GATEWAY, CLIENT = 2**62 + 77, 2**61 + 5
WRITE = Transaction(then=(Put(b"key", b"value"),))


def delivery(
    gts: int, payload: bytes = b"", *, origin: int = GATEWAY, digest: int = 3, dest: Destinations = (A, B)
) -> Delivery:
    mid = MessageId(ClientId(origin), gts, digest)
    return Delivery(mid, dest, payload, 1, Timestamp(gts), Timestamp(gts), Timestamp(0), mismatch=False)


def request(client: int, sequence: int = 9, command: Command = WRITE) -> bytes:
    return encode_request(Request(client, sequence, 1, 10, 0, command))


def lines_of(recorder: DeliveryRecorder) -> list[dict[str, Any]]:
    raw = recorder.path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def fields_of(line: dict[str, Any]) -> tuple[object, ...]:
    return tuple(line.get(name) for name in ("group", "kind", "position", "gts", "client", "sequence"))


def test_each_group_has_its_own_numbers_and_says_where_it_begins(tmp_path: Path) -> None:
    recorder = DeliveryRecorder(tmp_path / "made", NODE, requests=True)
    recorder.began(A, Timestamp(5))
    recorder.began(B, Timestamp(0))
    recorder.delivered(A, [delivery(7, request(CLIENT)), delivery(8, request(CLIENT, 10))])
    recorder.delivered(B, [delivery(8, request(CLIENT, 10))])
    recorder.jumped(B, Timestamp(100))
    recorder.delivered(B, [delivery(101, request(CLIENT, 11), dest=(B,), digest=2**64 - 1)])
    recorder.close()
    lines = lines_of(recorder)
    assert [fields_of(line) for line in lines] == [
        (0, "begin", 1, 5, None, None),
        (1, "begin", 1, 0, None, None),
        (0, "message", 2, 7, CLIENT, 9),
        (0, "message", 3, 8, CLIENT, 10),
        (1, "message", 2, 8, CLIENT, 10),
        (1, "jump", 3, 100, None, None),
        (1, "message", 4, 101, CLIENT, 11),
    ]
    assert {(line["run"], line["node"]) for line in lines} == {(recorder.run, "n1")}
    message = {name: lines[2][name] for name in ("origin", "number", "digest", "destinations")}
    assert message == {"origin": GATEWAY, "number": 7, "digest": 3, "destinations": [0, 1]}
    assert (lines[-1]["digest"], lines[-1]["destinations"]) == (-1, [1])
    assert recorder.path.name == f"deliveries-{recorder.run}.jsonl"


def test_every_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    runs = [DeliveryRecorder(tmp_path, NODE, requests=True) for _ in range(3)]
    assert len({recorder.path for recorder in runs}) == 3
    for recorder in runs:
        recorder.close()
        recorder.close()


@pytest.mark.parametrize(
    ("what", "payload", "origin"),
    [
        ("the gateway's own number", request(own_client(GATEWAY, 1)), GATEWAY),
        ("its second session", request(own_client(GATEWAY, 2)), GATEWAY),
        ("housekeeping", request(own_client(GATEWAY, 1), command=Tick()), GATEWAY),
        ("members", request(CLIENT), MEMBERSHIP),
        ("nonsense", b"\xc1", GATEWAY),
        ("another kind of thing", b"\x92\xa1x\x01", GATEWAY),
        ("too little of it", b"\x91\x01", GATEWAY),
        ("nothing", b"", GATEWAY),
    ],
)
def test_a_line_names_the_client_only_if_a_client_sent_the_request(
    what: str, payload: bytes, origin: int, tmp_path: Path
) -> None:
    recorder = DeliveryRecorder(tmp_path, NODE, requests=True)
    recorder.began(A, Timestamp(0))
    recorder.delivered(A, [delivery(7, payload, origin=origin), delivery(8, request(CLIENT))])
    recorder.close()
    assert [fields_of(line)[4:] for line in lines_of(recorder)[1:]] == [(None, None), (CLIENT, 9)], what


def test_bare_messages_have_no_requests(tmp_path: Path) -> None:
    recorder = DeliveryRecorder(tmp_path, NODE, requests=False)
    recorder.began(A, Timestamp(0))
    recorder.delivered(A, [delivery(7, request(CLIENT), origin=2**64 - 1)])
    recorder.close()
    assert [(line["origin"], line.get("client")) for line in lines_of(recorder)[1:]] == [(-1, None)]


@pytest.mark.parametrize("gateway", [1, 2, GATEWAY, INT64_MAX])
def test_a_gateway_knows_its_own(gateway: int) -> None:
    own = [own_client(gateway, count) for count in range(1, 100)]
    assert len(set(own)) == len(own)
    assert all(0 <= client <= INT64_MAX and is_own(gateway, client) for client in own)
    assert not any(is_own(gateway, client) for other in range(3, 9) for client in [own_client(other, 1)])
    assert not is_own(gateway, CLIENT)


def test_what_waits_is_written_in_pieces(tmp_path: Path) -> None:
    recorder = DeliveryRecorder(tmp_path, NODE, requests=True)
    recorder.began(A, Timestamp(0))
    assert recorder.path.stat().st_size == 0
    recorder.write()
    assert recorder.path.stat().st_size > 0
    for gts in range(1, 8000):
        recorder.delivered(A, [delivery(gts, request(CLIENT))])
    assert recorder.path.stat().st_size >= PIECE_BYTES
    assert recorder.path.read_bytes().endswith(b"\n")
    recorder.close()
    assert [line["gts"] for line in lines_of(recorder)] == list(range(8000))


class FullDisk:
    """It has room for so many bytes, and for a last line, perhaps."""

    def __init__(self, room: int, more: int) -> None:
        self._room = [room, more]
        self._write = os.write

    def write(self, file: int, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._room[0] == 0:
            del self._room[0]
            raise OSError(errno.ENOSPC, "No space left on device")
        some = data[: self._room[0]]
        self._room[0] -= len(some)
        return self._write(file, some)


@pytest.mark.parametrize("more", [1000, 20, 0])
def test_a_full_disk_ends_the_recording_and_nothing_else(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = DeliveryRecorder(tmp_path, NODE, requests=True)
    recorder.began(A, Timestamp(0))
    recorder.write()
    begin = recorder.path.stat().st_size
    recorder.delivered(A, [delivery(gts, request(CLIENT)) for gts in range(1, 100)])
    monkeypatch.setattr(os, "write", FullDisk(1000, more).write)
    recorder.write()
    monkeypatch.undo()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text
    assert str(recorder.path) in caplog.text
    recorder.delivered(A, [delivery(200, request(CLIENT))])
    recorder.jumped(A, Timestamp(300))
    recorder.write()
    recorder.close()
    *lines, last = lines_of(recorder)
    if more == 1000:
        assert (last["kind"], last["run"]) == ("stopped", recorder.run)
        assert "No space left" in last["error"]
    else:
        lines.append(last)
    assert [line["gts"] for line in lines] == list(range(len(lines)))
    assert 3 < len(lines) < 8
    assert recorder.path.stat().st_size < begin + 1000 + more


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        DeliveryRecorder(tmp_path / "file", NODE, requests=True)
