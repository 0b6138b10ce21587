"""A store inside this process, or inside one that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import grpc
import lmdb
import pytest
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.config.checks import ConfigError
from kvstore.config.toml import load_config
from kvstore.embedded import store as embedded_store
from kvstore.embedded.store import Embedded, EmbeddedError, open_store
from kvstore.local.cluster import LocalCluster, free_ports
from kvstore.storage import environment

WAIT_S = 60.0
EVERYTHING = kv.Range(prefix=b"")


def call(store: Embedded, method: str, request: Any, timeout_s: float = WAIT_S) -> Any:
    return store.call(method, request, timeout_s).result(WAIT_S)


def put(store: Embedded, key: bytes, value: bytes) -> int:
    found: int = call(store, "Put", kv.PutRequest(key=key, value=value)).header.revision
    return found


def get(store: Embedded, key: bytes, **asked: Any) -> bytes | None:
    found = call(store, "Get", kv.GetRequest(key=key, **asked))
    return found.entry.value if found.HasField("entry") else None


def add(key: bytes, operand: int) -> kv.Operation:
    return kv.Operation(add=kv.Calculate(key=key, operand=operand))


def scan(store: Embedded, **asked: Any) -> dict[bytes, bytes]:
    stream = store.stream("Scan", kv.ScanRequest(range=EVERYTHING, **asked), WAIT_S)
    found = {}
    while (page := stream.next().result(WAIT_S)) is not None:
        found.update({entry.key: entry.value for entry in page.entries})  # type: ignore[attr-defined]  # a ScanResponse
    return found


def partitions(store: Embedded) -> int:
    return len(call(store, "Topology", cluster.TopologyRequest()).partitions)


def error_of(future: Future[Any]) -> Error:
    with pytest.raises(EmbeddedError) as caught:
        future.result(WAIT_S)
    return caught.value.error


def listing(path: Path) -> dict[str, bytes]:
    """All that is in a folder, but for who has the lock."""
    files = [file for file in path.rglob("*") if file.is_file() and "lock" not in file.name]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture
def store() -> Iterator[Embedded]:
    with contextlib.closing(open_store()) as found:
        yield found


@pytest.fixture(params=["uvloop", "asyncio"])
def _any_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)


# The API


@pytest.mark.usefixtures("_any_loop")
def test_the_api_is_that_of_a_server() -> None:
    with contextlib.closing(open_store(partitions=4)) as store:
        assert partitions(store) == 4
        first = put(store, b"alice", b"100")
        put(store, b"bob", b"0")
        keys = [f"key{i:03}".encode() for i in range(200)]
        for future in [store.call("Put", kv.PutRequest(key=key, value=key), WAIT_S) for key in keys]:
            future.result(WAIT_S)
        paid = call(store, "Txn", kv.TxnRequest(then=[add(b"alice", -30), add(b"bob", 30)]))
        assert paid.succeeded
        assert [result.number.value for result in paid.results] == [70, 30]
        assert get(store, b"alice") == b"70"
        assert get(store, b"alice", revision=first) == b"100"
        assert get(store, b"alice", consistency=kv.SERIALIZABLE) is not None
        assert scan(store) == {b"alice": b"70", b"bob": b"30", **{key: key for key in keys}}
        assert call(store, "Delete", kv.DeleteRequest(range=kv.Range(prefix=b"key"))).count == 200
        taken = call(store, "Snapshot", kv.SnapshotRequest())
        put(store, b"alice", b"0")
        assert scan(store, revision=taken.revision) == {b"alice": b"70", b"bob": b"30"}
        call(store, "ReleaseSnapshot", kv.ReleaseSnapshotRequest(name=taken.name))
        call(store, "Compact", kv.CompactRequest(revision=taken.revision))
        found = error_of(store.call("Get", kv.GetRequest(key=b"alice", revision=first), WAIT_S))
        assert (found.kind, found.revision) == (Error.COMPACTED, taken.revision)
        status = call(store, "Status", cluster.StatusRequest())
        assert all(partition.serving and partition.leads for partition in status.partitions)
        assert json.loads(status.json)["pid"] == os.getpid()


def test_it_says_that_nobody_listens(store: Embedded) -> None:
    found = call(store, "Topology", cluster.TopologyRequest())
    assert [(node.name, node.address) for node in found.nodes] == [("n1", "")]


def test_a_watch_follows_from_where_it_began(store: Embedded) -> None:
    watch = store.stream("Watch", kv.WatchRequest(ranges=[EVERYTHING]), None)
    assert watch.next().result(WAIT_S) is not None
    revisions = [put(store, b"a%d" % i, b"") for i in range(20)]
    seen: list[int] = []
    while len(seen) < 20:
        response: Any = watch.next().result(WAIT_S)
        seen += [change.revision for change in response.transactions]
    assert seen == sorted(revisions)  # those of other partitions may be lower, unless a client says better
    waiting = watch.next()
    watch.cancel()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)


def test_errors_are_those_of_a_server(store: Embedded) -> None:
    found = error_of(store.call("Put", kv.PutRequest(value=b"1"), WAIT_S))
    assert (found.kind, found.message) == (Error.INVALID_REQUEST, "the key is empty")
    found = error_of(store.call("Put", kv.PutRequest(key=b"k" * 5000), WAIT_S))
    assert (found.kind, found.limit.name) == (Error.LIMIT_EXCEEDED, "key_bytes")
    found = error_of(store.call("Put", kv.PutRequest(key=b"k"), 0))
    assert found.kind == Error.DEADLINE_PASSED
    assert get(store, b"k") is None
    stream = store.stream("Scan", kv.ScanRequest(), WAIT_S)
    assert error_of(stream.next()).kind == Error.INVALID_REQUEST


def test_what_is_no_method_is_refused_at_once(store: Embedded) -> None:
    for name in ("Open", "Scan", "put"):
        with pytest.raises(TypeError, match=f"'{name}' is not a unary method"):
            store.call(name, kv.PutRequest(key=b"k"), WAIT_S)
    with pytest.raises(TypeError, match="'Get' is not a streaming method"):
        store.stream("Get", kv.GetRequest(key=b"k"), WAIT_S)
    with pytest.raises(TypeError, match="Get takes a GetRequest, not a PutRequest"):
        store.call("Get", kv.PutRequest(key=b"k"), WAIT_S)


def test_many_threads_may_call_at_once(store: Embedded) -> None:
    wrong: list[object] = []
    change = kv.TxnRequest(then=[add(b"a", 1), add(b"b", -1), add(b"c", 2), add(b"d", -2)])
    total = kv.TxnRequest(then=[kv.Operation(get=kv.Get(key=key)) for key in (b"a", b"b", b"c", b"d")])

    def work() -> None:
        try:
            for _ in range(25):
                call(store, "Txn", change)
                found = [int(r.got.entry.value) for r in call(store, "Txn", total).results]
                if sum(found):
                    wrong.append(found)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not wrong
    assert get(store, b"c") == b"400"


def test_it_works_beside_a_loop_of_the_caller() -> None:
    async def main() -> None:
        store = open_store()
        try:
            requests = [kv.PutRequest(key=b"%d" % i, value=b"1") for i in range(50)]
            await asyncio.gather(*(asyncio.wrap_future(store.call("Put", r, WAIT_S)) for r in requests))
            stream = store.stream("Scan", kv.ScanRequest(range=EVERYTHING), WAIT_S)
            found: Any = await asyncio.wrap_future(stream.next())
            assert found.count == 50
        finally:
            store.close()

    asyncio.run(main())


def test_cancelled_calls_leave_nothing_behind(store: Embedded) -> None:
    for i in range(100):
        store.call("Put", kv.PutRequest(key=b"%d" % i, value=b"1"), WAIT_S).cancel()
        store.call("Get", kv.GetRequest(key=b"%d" % i), WAIT_S).cancel()
    put(store, b"last", b"")
    status = json.loads(call(store, "Status", cluster.StatusRequest()).json)
    assert status["in_flight"] == 0
    assert len(store._bridge.calls) <= 1


# The folder


def test_it_is_there_again(tmp_path: Path) -> None:
    for opening in range(3):
        store = open_store(tmp_path / "s", partitions=5 if opening == 0 else None)
        assert partitions(store) == 5
        assert get(store, b"count") == (b"%d" % opening if opening else None)
        call(store, "Txn", kv.TxnRequest(then=[add(b"count", 1)]))
        store.close()
    config = load_config(tmp_path / "s" / "cluster.toml")
    assert (len(config.groups), config.durability) == (5, "fsync")


def test_without_a_path_it_is_gone_when_it_is_closed() -> None:
    store = open_store()
    folder = store._inside._config.directory
    put(store, b"k", b"v")
    assert load_config(folder / "cluster.toml").durability == "os"
    store.close()
    assert not folder.exists()
    with pytest.raises(EmbeddedError, match="partitions must be at least 1, not 0"):
        open_store(partitions=0)


def test_a_forgotten_store_is_closed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"k", b"v")
    thread = store._inside._thread
    del store
    gc.collect()
    assert not thread.is_alive()
    with contextlib.closing(open_store(tmp_path)) as again:
        assert get(again, b"k") == b"v"


def refused(tmp_path: Path, match: str, kind: Error.Kind = Error.INVALID_REQUEST, **asked: Any) -> None:
    before = listing(tmp_path)
    with pytest.raises(EmbeddedError, match=match) as caught:
        open_store(tmp_path, **asked)
    assert caught.value.error.kind == kind
    assert listing(tmp_path) == before


def test_what_is_there_is_not_opened_as_something_else(tmp_path: Path) -> None:
    open_store(tmp_path, partitions=2, durability="os").close()
    refused(tmp_path, "cluster.toml is of a cluster with partitions 2, not 3", partitions=3)
    refused(tmp_path, "cluster.toml is of a cluster with durability os, not fsync", durability="fsync")


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"partitions": 0}, "partitions must be at least 1, not 0"),
        ({"partitions": "3"}, "partitions must be a whole number, not '3'"),
        ({"partitions": True}, "partitions must be a whole number, not True"),
        ({"durability": "maybe"}, '"maybe" is not one of fsync, os'),
    ],
)
def test_bad_arguments_make_nothing(tmp_path: Path, asked: dict[str, Any], match: str) -> None:
    with pytest.raises(EmbeddedError, match=match):
        open_store(tmp_path / "new", **asked)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refused(tmp_path, "not empty, and not a cluster: it has thesis.tex")
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(EmbeddedError, match=r"thesis.tex is not a folder"):
        open_store(tmp_path / "thesis.tex")
    with pytest.raises(EmbeddedError, match=f"there is no folder {tmp_path}/typo to hold store: create it"):
        open_store(tmp_path / "typo" / "store")
    assert not (tmp_path / "typo").exists()
    with pytest.raises(EmbeddedError, match="the path is empty"):
        open_store("")


def test_a_cluster_and_its_disks_are_left_alone(tmp_path: Path) -> None:
    LocalCluster(tmp_path, 3, 1).let_go()
    refused(tmp_path, "of a cluster with nodes 3, not 1")
    disk = tmp_path / "n1"
    refused(disk, f"{disk} is the disk of a node")
    LocalCluster(tmp_path / "other", 1, 1, application="multicast").let_go()
    refused(tmp_path / "other", "of a cluster with application multicast, not store")


def test_it_is_open_once(tmp_path: Path) -> None:
    in_use = f"{tmp_path} is in use already, by process {os.getpid()}"
    with contextlib.closing(open_store(tmp_path)):
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(EmbeddedError, match=in_use) as caught:
            open_store(tmp_path)
        assert caught.value.error.kind == Error.UNAVAILABLE
        assert sorted(os.listdir(tmp_path)) == before
        assert run(OPENER, tmp_path).strip() == in_use
    open_store(tmp_path).close()


def test_a_lost_disk_is_said_to_be_lost(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    shutil.rmtree(tmp_path / "n1")
    refused(tmp_path, f"{tmp_path / 'n1'} has no disk", Error.UNAVAILABLE)


def test_a_store_whose_making_was_interrupted_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for where, name in ((embedded_store, "dump_config"), (Path, "rename")):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, die)
            with pytest.raises(KeyboardInterrupt):
                open_store(tmp_path)
    assert (tmp_path / embedded_store.UNFINISHED).exists()
    with contextlib.closing(open_store(tmp_path)) as store:
        put(store, b"k", b"v")
    assert not (tmp_path / embedded_store.UNFINISHED).exists()


def test_a_cluster_can_serve_it_and_leave_it_again(tmp_path: Path) -> None:
    with contextlib.closing(open_store(tmp_path, durability="os")) as store:
        put(store, b"from", b"inside")
    port, api = free_ports(2)
    address = f"127.0.0.1:{api}"
    with LocalCluster(tmp_path, port=port, api_port=api), grpc.insecure_channel(address) as channel:
        stub: Any = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]  # generated
        assert stub.Get(kv.GetRequest(key=b"from"), timeout=WAIT_S).entry.value == b"inside"
        stub.Put(kv.PutRequest(key=b"to", value=b"outside"), timeout=WAIT_S)
        with pytest.raises(EmbeddedError, match="is in use already"):
            open_store(tmp_path)
    with contextlib.closing(open_store(tmp_path)) as store:
        assert scan(store) == {b"from": b"inside", b"to": b"outside"}


# The end


def test_calls_under_way_are_answered_before_it_closes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    futures = [store.call("Put", kv.PutRequest(key=b"%d" % i, value=b"1"), WAIT_S) for i in range(300)]
    watch = store.stream("Watch", kv.WatchRequest(ranges=[EVERYTHING]), None)
    store.close()
    store.close()
    assert all(future.done() for future in futures)
    for future in futures:
        future.result()
    closed = f"the store in {tmp_path} is closed"
    for error in (
        error_of(watch.next()),
        error_of(store.call("Put", kv.PutRequest(key=b"k"), WAIT_S)),
        error_of(store.stream("Scan", kv.ScanRequest(range=EVERYTHING), WAIT_S).next()),
    ):
        assert (error.kind, error.message, error.retryable) == (Error.UNAVAILABLE, closed, False)
    with contextlib.closing(open_store(tmp_path)) as again:
        assert len(scan(again)) == 300


def test_it_can_be_closed_by_whoever_gets_an_answer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    closed = threading.Event()

    def close(_: object) -> None:
        store.close()  # in the store's own thread, which cannot wait for itself
        closed.set()

    store.call("Put", kv.PutRequest(key=b"k", value=b"v"), WAIT_S).add_done_callback(close)
    assert closed.wait(WAIT_S)
    store.close()
    with contextlib.closing(open_store(tmp_path)) as again:
        assert get(again, b"k") == b"v"


def test_a_disk_that_fails_ends_it_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put(store, b"k", b"v")

    def fail(transaction: lmdb.Transaction[bytes]) -> None:
        transaction.abort()
        raise lmdb.DiskError("no space")

    monkeypatch.setattr(environment, "_commit", fail)
    lost = error_of(store.call("Put", kv.PutRequest(key=b"k", value=b"w"), WAIT_S))
    assert lost.kind == Error.OUTCOME_UNKNOWN
    assert "no space" in lost.message
    later = error_of(store.call("Put", kv.PutRequest(key=b"k", value=b"w"), WAIT_S))
    assert later.kind == Error.UNAVAILABLE
    assert "no space" in later.message
    store.close()
    monkeypatch.undo()
    with contextlib.closing(open_store(tmp_path)) as again:
        assert get(again, b"k") == b"v"


def run(script: str, *arguments: object) -> str:
    """A Python of its own. What it says. It is ended in any case, with all that it has forked."""
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        said, complaints = process.communicate(timeout=WAIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert (process.returncode, complaints) == (0, "")
    return said


OPENER = """
import sys
from kvstore.embedded.store import EmbeddedError, open_store
try:
    open_store(sys.argv[1])
except EmbeddedError as error:
    print(error)
"""

WRITER = """
import sys, threading
from wbkv_proto.v1 import kv_pb2 as kv
from kvstore.embedded.store import open_store
store = open_store(sys.argv[1], durability=sys.argv[2])
said = threading.Lock()
def write(thread):
    for i in range(10**9):
        key = b"%d/%d" % (thread, i)
        store.call("Put", kv.PutRequest(key=key, value=key), 60).result()
        with said:
            print(key.decode(), flush=True)
for thread in range(4):
    threading.Thread(target=write, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, durability: str) -> None:
    acknowledged: list[bytes] = []
    for enough in (100, 300):
        with subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-c", WRITER, tmp_path, durability], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    acknowledged.append(line.strip())
                    if len(acknowledged) == enough:
                        process.send_signal(signal.SIGKILL)
            finally:
                process.kill()
    with contextlib.closing(open_store(tmp_path)) as store:
        found = scan(store)
    whole = [key for key in acknowledged if b"/" in key and key in found]
    # The very last line may have been cut by the kill.
    assert len(set(acknowledged) - set(whole)) <= 1
    assert len(acknowledged) >= 300


@pytest.mark.parametrize("ending", ["pass", "sys.exit()", "raise SystemExit(0)", "del store"])
def test_a_process_that_just_ends_loses_nothing(tmp_path: Path, ending: str) -> None:
    script = f"""
import sys
from wbkv_proto.v1 import kv_pb2 as kv
from kvstore.embedded.store import open_store
store = open_store(sys.argv[1])
watch = store.stream("Watch", kv.WatchRequest(ranges=[kv.Range(prefix=b"")]), None)
waiting = watch.next()
store.call("Put", kv.PutRequest(key=b"k", value=b"v"), 60).result()
{ending}
"""
    run(script, tmp_path)
    assert json.loads((tmp_path / "n1" / "disk.json").read_text())["clean"]
    with contextlib.closing(open_store(tmp_path)) as store:
        assert get(store, b"k") == b"v"


def test_it_opens_no_socket(tmp_path: Path) -> None:
    script = """
import os, sys
def hook(event, arguments):
    if event in ("socket.bind", "socket.connect", "socket.getaddrinfo"):
        raise RuntimeError(event)
sys.addaudithook(hook)
from wbkv_proto.v1 import kv_pb2 as kv
from kvstore.embedded.store import open_store
store = open_store(sys.argv[1])
store.call("Put", kv.PutRequest(key=b"k", value=b"v"), 60).result()
sockets = [line for name in ("tcp", "tcp6", "udp", "udp6") for line in open("/proc/self/net/" + name)]
files = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
inodes = {os.readlink(file) for file in files if os.path.exists(file)}
print([line for line in sockets[1:] if f"socket:[{line.split()[9]}]" in inodes])
store.close()
"""
    assert run(script, tmp_path) == "[]\n"


FORKER = """
import gc, json, os, sys
from wbkv_proto.v1 import kv_pb2 as kv
from kvstore.embedded.store import open_store

def put():
    return store.call("Put", kv.PutRequest(key=b"k", value=b"v"), 60)

store = open_store(sys.argv[1])
put().result()
everything = kv.Range(prefix=b"")
watch = store.stream("Watch", kv.WatchRequest(ranges=[everything]), None)
said, go = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    found = []
    for future in (put(), watch.next(), store.stream("Scan", kv.ScanRequest(range=everything), 60).next()):
        found.append(str(future.exception(60)))
    store.close()
    del store, watch, future
    gc.collect()
    os.write(said[1], json.dumps(found).encode())
    os.read(go[0], 1)
    sys.exit(0)  # as a child does that was not made to be one
found = json.loads(os.read(said[0], 10_000))
put().result(60)
store.close()
store = open_store(sys.argv[1])  # while the child lives
put().result(60)
os.write(go[1], b".")
assert os.waitpid(pid, 0)[1] == 0
put().result(60)
print(json.dumps([os.getpid(), found]))
"""


def test_a_fork_leaves_it_to_the_parent(tmp_path: Path) -> None:
    parent, found = json.loads(run(FORKER, tmp_path))
    why = f"the store in {tmp_path} is open in process {parent}, which this one was forked from"
    assert found == [why] * 3


def test_history_is_dropped_by_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path, partitions=1, keep_history="1s")
    first = put(store, b"k", b"1")
    while True:  # until the floor has passed the second revision, with a new one now and then to read at
        found = put(store, b"k", b"2")
        try:
            get(store, b"k", revision=first)
        except EmbeddedError as error:
            raised = error.error
            break
    assert raised.kind == Error.COMPACTED
    assert first < raised.revision <= found
    assert get(store, b"k") == b"2"
    store.close()
    assert load_config(tmp_path / "cluster.toml").keep_history.shown == "1s"
    store = open_store(tmp_path, keep_history="forever")
    assert get(store, b"k") == b"2"
    store.close()
    assert load_config(tmp_path / "cluster.toml").keep_history.seconds is None


def test_a_wrong_time_to_keep_history_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        EmbeddedError, match='"a while" is not a duration; write a whole number and s, m, h or d'
    ):
        open_store(tmp_path / "new", keep_history="a while")
    assert not (tmp_path / "new").exists()
    open_store(tmp_path / "old", partitions=1).close()
    before = (tmp_path / "old" / "cluster.toml").read_bytes()
    with pytest.raises(EmbeddedError, match="is not a duration"):
        open_store(tmp_path / "old", keep_history="a while")
    assert (tmp_path / "old" / "cluster.toml").read_bytes() == before


def test_a_local_cluster_rejects_a_wrong_time_before_it_makes_anything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='"soon" is not a duration'):
        LocalCluster(tmp_path / "new", 1, 1, keep_history="soon")
    assert not (tmp_path / "new").exists()
    LocalCluster(tmp_path / "old", 1, 1).close()
    assert load_config(tmp_path / "old" / "cluster.toml").keep_history.shown == "1d"
    LocalCluster(tmp_path / "old", keep_history="12h").close()
    assert load_config(tmp_path / "old" / "cluster.toml").keep_history.shown == "12h"
    LocalCluster(tmp_path / "old").close()
    assert load_config(tmp_path / "old" / "cluster.toml").keep_history.shown == "12h"


def test_files_shrink_when_a_node_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.storage.store.RING_BYTES", 1 << 16)  # deliveries that are kept count as used
    store = open_store(tmp_path, partitions=1)
    for number in range(40):
        put(store, b"%d" % number, b"x" * 100_000)
    call(store, "Delete", kv.DeleteRequest(range=EVERYTHING))
    kept = put(store, b"kept", b"value")
    call(store, "Compact", kv.CompactRequest(revision=kept))
    store.close()  # what was dropped may be committed only now
    open_store(tmp_path).close()
    file = tmp_path / "n1" / "state" / "data.mdb"
    before = file.stat().st_size
    with LocalCluster(tmp_path, reclaim=True) as cluster:
        (node,) = cluster.status()["nodes"]
        assert node["files"] is not None
        assert node["files"]["state"]["file"] < before / 2
        (group,) = cluster.status()["groups"]
        history = group["replicas"][0]["history"]
        assert history is not None
        assert (history["floor"], history["keep"], history["held_by"]) == (kept, "1d", None)
    store = open_store(tmp_path)
    assert scan(store) == {b"kept": b"value"}
    store.close()
