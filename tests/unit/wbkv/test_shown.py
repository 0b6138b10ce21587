"""What objects of the client show of themselves: what they are and how far, never much of a value."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import pytest
import wbkv
from wbkv import aio

from tests.unit.wbkv.model import ModelLink

HUGE = b"secret" + b"x" * 5_000


@pytest.fixture
def shown(
    link: ModelLink, client: wbkv.Client[bytes], aclient: aio.Client[bytes]
) -> Iterator[dict[str, Any]]:
    """An object of every class, with large values where there are values."""
    for number in range(50):
        link.store.put(b"k%d" % number, HUGE)
    tx = client.transaction()
    tx.get("k1")
    list(tx.scan("k2"))
    tx.put("k1", HUGE)
    entry = client.entry("k1")
    assert entry is not None
    event = wbkv.Event(b"k1", HUGE, 7, 1)
    columns = wbkv.Columns(7, 50, HUGE, HUGE, HUGE, HUGE, HUGE, HUGE, HUGE)
    txn = client.txn().when(*(wbkv.value("k") == HUGE,) * 50).then(*(wbkv.put("k", HUGE),) * 50)
    opening = aclient.snapshot()
    yield {
        "client": client, "aio client": aclient, "tx": tx, "aio tx": aclient.transaction(),
        "txn": txn, "condition": wbkv.value("k") == HUGE, "operation": wbkv.put("k", HUGE), "entry": entry,
        "event": event, "change": wbkv.Change(7, (event,) * 50), "columns": columns,
        "scanned": wbkv.Scanned((entry,) * 50, 50, more=True),
        "result": wbkv.TxnResult(True, 7, (entry,) * 50, ()),  # noqa: FBT003 - its first field
        "status": wbkv.NodeStatus("n1", "h:1", (), HUGE.decode()),
        "scan": client.scan("k"), "watch": client.watch("k"), "aio scan": aclient.scan("k"),
        "snapshot": client.snapshot(), "lock": client.lock("l"), "counter": client.counter("n"),
        "opening": opening, "history": wbkv.History(io.BytesIO()),
        "trace": wbkv.Trace(io.BytesIO()), "text": wbkv.Entry(b"k", HUGE.decode(), 1, 1, 1),
        "nested": wbkv.Entry(b"k", {"a": [HUGE.decode()] * 50}, 1, 1, 1),
        "codec": wbkv.codecs.JSON, "integer codec": wbkv.codecs.INTEGER,
    }  # fmt: skip
    opening._awaited = True


def test_representations_are_short_and_say_something(shown: dict[str, Any]) -> None:
    for name, found in shown.items():
        text = repr(found)
        assert len(text) < 700, (name, len(text))
        assert " object at 0x" not in text, name
        assert "\n" not in text, name


def test_what_they_say(link: ModelLink, shown: dict[str, Any]) -> None:
    assert repr(shown["client"]) == "<wbkv.Client of c>"
    assert repr(shown["aio client"]) == "<wbkv.aio.Client of c>"
    tx = shown["tx"]
    assert repr(tx) == "<wbkv.Transaction: open, 1 keys and 1 ranges read, 1 keys written>"
    tx.commit()
    assert repr(tx).startswith("<wbkv.Transaction: was committed, ")
    assert repr(shown["operation"]) == "put(b'k', ...)"
    assert repr(shown["condition"]).startswith("value(b'k') == b'secretxxx")
    assert repr(shown["entry"]).endswith(
        "... (5006 bytes), create_revision=120, mod_revision=120, version=1)"
    )
    assert "and 47 more" in repr(shown["change"])
    assert "and 47 more" in repr(shown["result"])
    assert "and 47 more" in repr(shown["txn"])
    assert repr(shown["snapshot"]) == f"<wbkv.Snapshot 's' at revision {link.store.revision - 10}>"
    lock = shown["lock"]
    assert repr(lock) == "<wbkv.Lock b'l': not held>"
    with lock:
        assert repr(lock) == f"<wbkv.Lock b'l': held, token {lock.token}>"
    scan = shown["scan"]
    assert repr(scan) == "<wbkv.Scan, not begun>"
    next(scan)
    assert repr(scan) == f"<wbkv.Scan at revision {scan.revision}>"
    assert repr(shown["watch"]) == "<wbkv.Watch, not begun>"
    assert repr(shown["opening"]) == "<wbkv.aio.Client.snapshot(...), not awaited yet>"
    assert repr(shown["codec"]) == "codecs.JSON"
    assert (
        repr(wbkv.Entry(b"k", "v", 1, 2, 3))
        == "Entry(b'k', 'v', create_revision=1, mod_revision=2, version=3)"
    )


def test_all_data_is_covered(shown: dict[str, Any]) -> None:
    """A class of data that is new may have large fields, too."""
    small = {
        "Failed",
        "Failure",
        "KeyRange",
        "NodeStatus",
        "Partition",
        "PartitionStatus",
        "RequestId",
        "Split",
        "Topology",
    }
    data = {
        name
        for name in wbkv.__all__
        if isinstance(found := getattr(wbkv, name), type)
        and (hasattr(found, "_fields") or dataclasses.is_dataclass(found))
    }
    assert data - small == {"Change", "Columns", "Entry", "Event", "Scanned", "TxnResult"}
