"""What clients do and see: the same over a service in memory and over real nodes."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.v1.error_pb2 import Error

from tests.unit.kvstore.api.harness import Client, every, fails

PREFIX = b"t/"


def put(key: bytes, value: bytes) -> kv.Operation:
    return kv.Operation(put=kv.Put(key=key, value=value))


def get(key: bytes) -> kv.Operation:
    return kv.Operation(get=kv.Get(key=key))


def absent(key: bytes) -> kv.Condition:
    return kv.Condition(compare=kv.Compare(key=key, operator=kv.EQUAL, exists=False))


def exists(key: bytes) -> kv.Condition:
    return kv.Condition(compare=kv.Compare(key=key, operator=kv.EQUAL, exists=True))


def compare(key: bytes, operator: kv.Operator, **operand: Any) -> kv.Condition:
    return kv.Condition(compare=kv.Compare(key=key, operator=operator, **operand))


def request_id(client: int, sequence: int, **fields: int) -> kv.RequestId:
    return kv.RequestId(client=client, sequence=sequence, **fields)


async def single_keys(client: Client) -> None:
    """Put, get and delete."""
    key = PREFIX + b"single"
    written = await client.kv.Put(kv.PutRequest(key=key, value=b"1"))
    revision = written.header.transaction_revision
    assert revision > 0
    found = await client.kv.Get(kv.GetRequest(key=key))
    assert found.entry == kv.Entry(
        key=key, value=b"1", create_revision=revision, mod_revision=revision, version=1
    )
    assert found.header.cluster
    assert found.header.node
    assert found.header.transaction_revision == 0
    again = await client.kv.Put(kv.PutRequest(key=key, value=b"2", min_revision=revision))
    assert again.header.transaction_revision > revision
    near = await client.kv.Get(
        kv.GetRequest(key=key, consistency=kv.SERIALIZABLE, min_revision=again.header.transaction_revision)
    )
    assert (near.entry.value, near.entry.version, near.entry.create_revision) == (b"2", 2, revision)
    assert (await client.kv.Delete(kv.DeleteRequest(key=key))).count == 1
    assert (await client.kv.Delete(kv.DeleteRequest(key=key))).count == 0
    assert not (await client.kv.Get(kv.GetRequest(key=key))).HasField("entry")


async def transactions(client: Client) -> None:
    """Both branches, results in the order of the request, faults as results."""
    keys = [PREFIX + b"txn%d" % i for i in range(8)]
    request = kv.TxnRequest(
        conditions=[absent(key) for key in keys],
        then=[
            *(put(key, b"1") for key in keys),
            kv.Operation(add=kv.Calculate(key=keys[0], operand=-3)),
            kv.Operation(append=kv.Append(key=keys[1], value=b"23")),
            kv.Operation(max=kv.Calculate(key=keys[2], operand=7)),
            kv.Operation(min=kv.Calculate(key=keys[1], operand=5)),
            get(keys[1]),
        ],
        otherwise=[get(keys[7])],
    )
    first = await client.kv.Txn(request)
    assert first.succeeded
    assert [r.WhichOneof("result") for r in first.results] == ["written"] * 8 + ["number"] * 4 + ["got"]
    assert [r.number.value for r in first.results[8:12]] == [-2, 3, 7, 5]
    assert first.results[12].got.entry.value == b"5"
    assert first.results[12].got.entry.mod_revision == first.header.transaction_revision
    second = await client.kv.Txn(request)
    assert not second.succeeded
    assert [unmet.condition for unmet in second.unmet] == list(range(8))
    assert second.results[0].got.entry.value == b"1"
    unchanged = kv.TxnRequest(
        conditions=[
            kv.Condition(
                unchanged=kv.Unchanged(
                    range=kv.Range(prefix=PREFIX + b"txn"), since=second.header.transaction_revision
                )
            )
        ],
        then=[kv.Operation(delete_range=kv.DeleteRange(range=kv.Range(prefix=PREFIX + b"txn")))],
    )
    third = await client.kv.Txn(unchanged)
    assert third.succeeded
    assert third.results[0].deleted.count == 8
    assert not (await client.kv.Txn(unchanged)).succeeded


async def aborted_transactions(client: Client) -> None:
    """A write that cannot be performed aborts its transaction; with `allow_failures` it fails alone."""
    keys = [PREFIX + b"abort%d" % i for i in range(8)]
    await client.kv.Txn(kv.TxnRequest(then=[put(key, b"word") for key in keys[4:]]))
    low = kv.Operation(add=kv.Calculate(key=keys[0], operand=-3, floor=0))
    wrong = [kv.Operation(add=kv.Calculate(key=key, operand=1)) for key in keys[4:]]
    request = kv.TxnRequest(then=[get(keys[0]), *(put(key, b"1") for key in keys[1:4]), low, *wrong])
    code, error = await fails(client.kv.Txn(request))
    assert (code, error.kind) == (grpc.StatusCode.FAILED_PRECONDITION, Error.OPERATION_FAILED)
    assert "nothing was written: operation 4 of `then` cannot be performed (below floor)" in error.message
    assert [(each.operation, each.fault, each.otherwise) for each in error.failures] == [
        (4, kv.BELOW_FLOOR, False), *((at, kv.NOT_A_NUMBER, False) for at in range(5, 9)),
    ]  # fmt: skip
    found = await client.kv.Txn(kv.TxnRequest(then=[get(key) for key in keys]))
    assert [result.got.HasField("entry") for result in found.results] == [False] * 4 + [True] * 4
    otherwise = kv.TxnRequest(conditions=[exists(keys[0])], then=[get(keys[1])], otherwise=[wrong[0]])
    code, error = await fails(client.kv.Txn(otherwise))
    assert [(each.operation, each.fault, each.otherwise) for each in error.failures] == [
        (0, kv.NOT_A_NUMBER, True)
    ]
    request.allow_failures = True
    alone = await client.kv.Txn(request)
    assert alone.succeeded
    kinds = [result.WhichOneof("result") for result in alone.results]
    assert kinds == ["got", "written", "written", "written", *["failed"] * 5]
    assert (await client.kv.Get(kv.GetRequest(key=keys[1]))).entry.value == b"1"


async def conditions(client: Client) -> None:
    """Numbers, prefixes, any and all; what was there before a swap."""
    keys = [PREFIX + b"cond%d" % i for i in range(6)]
    await client.kv.Txn(kv.TxnRequest(then=[put(keys[0], b"7"), put(keys[1], b"user/7")]))
    seven = compare(keys[0], kv.GREATER_EQUAL, number=7)
    word = compare(keys[1], kv.LESS, number=100)
    user = compare(keys[1], kv.STARTS_WITH, value=b"user/")
    missing = compare(keys[2], kv.NOT_EQUAL, number=0)
    assert (await client.kv.Txn(kv.TxnRequest(conditions=[seven, user]))).succeeded
    for wrong in (word, missing):
        assert not (await client.kv.Txn(kv.TxnRequest(conditions=[wrong]))).succeeded
    either = kv.Condition(any=kv.Conditions(conditions=[word, missing, seven]))
    both = kv.Condition(all=kv.Conditions(conditions=[seven, either]))
    swap = kv.Operation(swap=kv.Put(key=keys[3], value=b"new"))
    first = await client.kv.Txn(kv.TxnRequest(conditions=[user, both], then=[swap]))
    assert first.succeeded
    assert not first.unmet
    assert not first.results[0].got.HasField("entry")
    neither = kv.Condition(any=kv.Conditions(conditions=[word, missing]))
    second = await client.kv.Txn(kv.TxnRequest(conditions=[user, neither, word], otherwise=[swap]))
    assert [unmet.condition for unmet in second.unmet] == [1, 2]
    before = second.results[0].got.entry
    assert (before.value, before.mod_revision) == (b"new", first.header.transaction_revision)


async def reads_in_transactions(client: Client) -> None:
    """A transaction that only reads, now and as of a revision."""
    key = PREFIX + b"read"
    first = await client.kv.Put(kv.PutRequest(key=key, value=b"old"))
    old = first.header.transaction_revision
    second = await client.kv.Put(kv.PutRequest(key=key, value=b"new", min_revision=old))
    asked = kv.TxnRequest(
        then=[get(key), kv.Operation(scan=kv.Scan(range=kv.Range(prefix=key), shape=kv.COUNT))],
        min_revision=second.header.transaction_revision,
    )
    now = await client.kv.Txn(asked)
    assert (now.results[0].got.entry.value, now.results[1].scanned.count) == (b"new", 1)
    asked.revision = old
    then = await client.kv.Txn(asked)
    assert then.results[0].got.entry.value == b"old"
    single = kv.GetRequest(key=key, revision=old, min_revision=second.header.transaction_revision)
    assert (await client.kv.Get(single)).entry.value == b"old"
    asked.revision = 0
    asked.consistency = kv.SERIALIZABLE
    assert (await client.kv.Txn(asked)).results[0].got.entry.value == b"new"


async def repeated_requests(client: Client) -> None:
    """A repeated request is executed once; a number used for another request is refused."""
    key = PREFIX + b"once"
    asked = kv.TxnRequest(then=[kv.Operation(add=kv.Calculate(key=key, operand=1))], id=request_id(0x5EED, 1))
    first = await client.kv.Txn(asked)
    again = await client.kv.Txn(asked)
    assert first.results == again.results
    assert first.results[0].number.value == 1
    asked.then[0].add.operand = 2
    code, error = await fails(client.kv.Txn(asked))
    assert (code, error.kind) == (grpc.StatusCode.ALREADY_EXISTS, Error.REQUEST_MISMATCH)
    assert not error.retryable
    late = kv.PutRequest(key=key, value=b"0", id=request_id(0x5EED, 2, deadline=1))
    code, error = await fails(client.kv.Put(late))
    assert (code, error.kind) == (grpc.StatusCode.FAILED_PRECONDITION, Error.REQUEST_EXPIRED)
    assert (await client.kv.Get(kv.GetRequest(key=key))).entry.value == b"1"


async def scans(client: Client) -> None:
    """Pages of one revision, limits, both directions, keys and counts."""
    prefix = PREFIX + b"scan/"
    keys = [prefix + b"%03d" % i for i in range(50)]
    value = b"v" * 100
    written = await client.kv.Txn(kv.TxnRequest(then=[put(key, value) for key in keys]))
    asked: dict[str, Any] = {"range": kv.Range(prefix=prefix)}

    async def scan(**fields: Any) -> tuple[list[kv.Entry], kv.ScanResponse, int]:
        pages = await every(client.kv.Scan(kv.ScanRequest(**{**asked, **fields})))
        assert len({page.header.revision for page in pages}) == 1
        assert pages[0].header.revision >= written.header.transaction_revision
        return [entry for page in pages for entry in page.entries], pages[-1], len(pages)

    found, last, pages = await scan(page_bytes=1000)
    assert [entry.key for entry in found] == keys
    assert {entry.value for entry in found} == {value}
    assert (last.count, last.more) == (50, False)
    assert pages > 3
    found, last, _ = await scan(reverse=True, limit=10, shape=kv.KEYS)
    assert [entry.key for entry in found] == keys[:-11:-1]
    assert {entry.value for entry in found} == {b""}
    assert (last.count, last.more) == (10, True)
    found, last, _ = await scan(limit=50)
    assert (len(found), last.more) == (50, False)
    found, last, _ = await scan(limit_bytes=3 * (len(keys[0]) + 100), page_bytes=500)
    assert (len(found), last.count, last.more) == (3, 3, True)
    found, last, _ = await scan(range=kv.Range(interval=kv.Interval(start=keys[10], end=keys[12])))
    assert [entry.key for entry in found] == keys[10:12]
    found, last, _ = await scan(shape=kv.COUNT)
    assert (found, last.count, last.more) == ([], 50, False)
    found, last, _ = await scan(range=kv.Range(prefix=prefix + b"none"))
    assert (found, last.count, last.more) == ([], 0, False)


async def scans_in_parts(client: Client) -> None:
    """What partitions and splits give, put together, is what a scan gives; columns say what entries say."""
    prefix = PREFIX + b"parts/"
    keys = [prefix + b"%04d" % i for i in range(300)]
    for i in range(0, 300, 100):
        written = await client.kv.Txn(
            kv.TxnRequest(then=[put(key, key[-1:] * 7) for key in keys[i : i + 100]])
        )
    revision = written.header.transaction_revision
    asked: dict[str, Any] = {"range": kv.Range(prefix=prefix), "revision": revision}
    whole = [entry for page in await every(client.kv.Scan(kv.ScanRequest(**asked))) for entry in page.entries]
    assert [entry.key for entry in whole] == keys
    partitions = [p.id for p in (await client.cluster.Topology(cluster.TopologyRequest())).partitions]
    split = kv.SplitsRequest(range=kv.Range(prefix=prefix), pieces=5)
    splits = (await client.kv.Splits(split)).splits
    assert {each.partition for each in splits} == set(partitions)
    parts = []
    for each in splits:
        part = kv.ScanRequest(
            range=kv.Range(interval=each.keys), revision=revision, partitions=[each.partition], columns=True,
            page_bytes=500,
        )  # fmt: skip
        parts += [entry for page in await every(client.kv.Scan(part)) for entry in rows(page.columns)]
    assert sorted(parts, key=lambda entry: entry.key) == whole
    split.partitions.append(partitions[0])
    assert {each.partition for each in (await client.kv.Splits(split)).splits} == {partitions[0]}
    names = await every(client.kv.Scan(kv.ScanRequest(**asked, columns=True, shape=kv.KEYS)))
    found = [entry for page in names for entry in rows(page.columns)]
    assert [(entry.key, entry.value) for entry in found] == [(key, b"") for key in keys]
    for wrong in (kv.ScanRequest(**asked, partitions=[999]), kv.ScanRequest(**asked, partitions=range(2000))):
        code, error = await fails(every(client.kv.Scan(wrong)))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)
        assert "partition" in error.message
    for pieces in (0, 1 << 20):
        code, error = await fails(client.kv.Splits(kv.SplitsRequest(range=split.range, pieces=pieces)))
        assert "pieces must be an integer from 1 to 65536" in error.message


def rows(columns: kv.Columns) -> list[kv.Entry]:
    """Columns as entries."""
    sizes = [struct.unpack(f"<{len(ends) // 4}I", ends) for ends in (columns.key_ends, columns.value_ends)]
    numbers = [
        struct.unpack(f"<{len(column) // 8}Q", column)
        for column in (columns.create_revisions, columns.mod_revisions, columns.versions)
    ]
    found = []
    for i, end in enumerate(sizes[0]):
        value = b""
        if sizes[1]:
            value = columns.values[sizes[1][i - 1] if i else 0 : sizes[1][i]]
        key = columns.keys[sizes[0][i - 1] if i else 0 : end]
        create, mod, version = (column[i] for column in numbers)
        found.append(
            kv.Entry(key=key, value=value, create_revision=create, mod_revision=mod, version=version)
        )
    return found


async def snapshots_by_name(client: Client) -> None:
    """A snapshot of an old revision can be made, and its time extended, by any client that knows its name."""
    key = PREFIX + b"named"
    old = (await client.kv.Put(kv.PutRequest(key=key, value=b"old"))).header.transaction_revision
    new = (
        await client.kv.Put(kv.PutRequest(key=key, value=b"new", min_revision=old))
    ).header.transaction_revision
    taken = await client.kv.Snapshot(kv.SnapshotRequest(name="mine", revision=old, ttl_ms=60_000))
    assert (taken.name, taken.revision) == ("mine", old)
    code, error = await fails(client.kv.Compact(kv.CompactRequest(revision=new)))
    assert (code, error.kind) == (grpc.StatusCode.FAILED_PRECONDITION, Error.PINNED)
    assert "mine" in error.message
    moved = await client.kv.Snapshot(kv.SnapshotRequest(name="mine", revision=new, ttl_ms=60_000))
    assert moved.revision == new
    await client.kv.Compact(kv.CompactRequest(revision=new))
    code, error = await fails(client.kv.Snapshot(kv.SnapshotRequest(name="mine", revision=old)))
    assert (code, error.kind) == (grpc.StatusCode.OUT_OF_RANGE, Error.COMPACTED)
    await client.kv.ReleaseSnapshot(kv.ReleaseSnapshotRequest(name="mine"))
    code, error = await fails(client.kv.Snapshot(kv.SnapshotRequest(name="x" * 1000)))
    assert "at most 200 characters" in error.message


async def watches_that_end(client: Client) -> None:
    """Exactly the transactions of an interval, of all partitions, or each partition's part of them."""
    prefix = PREFIX + b"until/"
    revisions: list[int] = []
    for i in range(6):
        asked = kv.TxnRequest(
            then=[put(prefix + b"%d" % j, b"%d" % i) for j in range(9)],
            min_revision=max(revisions, default=0),
        )
        revisions.append((await client.kv.Txn(asked)).header.transaction_revision)
    watch = kv.WatchRequest(ranges=[kv.Range(prefix=prefix)], after=revisions[1], until=revisions[4])
    pages = await every(client.kv.Watch(watch))
    assert pages[-1].revision == revisions[4]
    found = [change for page in pages for change in page.transactions]
    assert [change.revision for change in found] == revisions[2:5]
    assert [len(change.events) for change in found] == [9] * 3
    parts: dict[int, list[kv.Event]] = {}
    for partition in (await client.cluster.Topology(cluster.TopologyRequest())).partitions:
        part = kv.WatchRequest(
            ranges=watch.ranges, after=watch.after, until=watch.until, partitions=[partition.id]
        )
        for page in await every(client.kv.Watch(part)):
            for change in page.transactions:
                parts.setdefault(change.revision, []).extend(change.events)
    by_key = {revision: sorted(events, key=lambda event: event.key) for revision, events in parts.items()}
    assert by_key == {change.revision: list(change.events) for change in found}
    nothing = kv.WatchRequest(ranges=watch.ranges, after=revisions[4], until=revisions[4])
    assert not [change for page in await every(client.kv.Watch(nothing)) for change in page.transactions]
    for after in (0, revisions[5]):
        wrong = kv.WatchRequest(ranges=watch.ranges, after=after, until=revisions[4])
        code, error = await fails(every(client.kv.Watch(wrong)))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)


async def snapshots(client: Client) -> None:
    """A snapshot stays readable, whatever is written and compacted."""
    key = PREFIX + b"snapshot"
    await client.kv.Put(kv.PutRequest(key=key, value=b"old"))
    taken = await client.kv.Snapshot(kv.SnapshotRequest(ttl_ms=30_000))
    assert 0 < taken.ttl_ms <= 30_000
    written = await client.kv.Put(kv.PutRequest(key=key, value=b"new", min_revision=taken.revision))
    revision = written.header.transaction_revision
    old = await client.kv.Get(kv.GetRequest(key=key, revision=taken.revision))
    assert old.entry.value == b"old"
    (page,) = await every(client.kv.Scan(kv.ScanRequest(range=kv.Range(prefix=key), revision=taken.revision)))
    assert [entry.value for entry in page.entries] == [b"old"]
    code, error = await fails(client.kv.Compact(kv.CompactRequest(revision=revision)))
    assert (code, error.kind) == (grpc.StatusCode.FAILED_PRECONDITION, Error.PINNED)
    await client.kv.ReleaseSnapshot(kv.ReleaseSnapshotRequest(name=taken.name))
    await client.kv.ReleaseSnapshot(kv.ReleaseSnapshotRequest(name=taken.name))
    await client.kv.Compact(kv.CompactRequest(revision=revision))
    code, error = await fails(client.kv.Get(kv.GetRequest(key=key, revision=taken.revision)))
    assert (code, error.kind) == (grpc.StatusCode.OUT_OF_RANGE, Error.COMPACTED)
    assert error.revision >= revision
    code, error = await fails(client.kv.Compact(kv.CompactRequest(revision=taken.revision)))
    assert (code, error.kind) == (grpc.StatusCode.OUT_OF_RANGE, Error.COMPACTED)
    assert f"revision {taken.revision} is below the floor" in error.message
    code, error = await fails(
        every(client.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=key)], after=taken.revision)))
    )
    assert (code, error.kind) == (grpc.StatusCode.OUT_OF_RANGE, Error.COMPACTED)


async def watches(client: Client) -> None:
    """Every transaction once, whole, in order, with positions to go on from."""
    prefix = PREFIX + b"watch/"
    asked = kv.WatchRequest(ranges=[kv.Range(prefix=prefix)], progress_ms=100)
    stream = client.kv.Watch(asked)
    begun = await stream.read()
    assert not begun.transactions
    assert begun.revision > 0
    revisions = []
    for i in range(5):
        answer = await client.kv.Txn(
            kv.TxnRequest(then=[put(prefix + b"%d" % j, b"%d" % i) for j in range(4)])
        )
        revisions.append(answer.header.transaction_revision)
    await client.kv.Put(kv.PutRequest(key=PREFIX + b"unwatched", value=b""))
    removed = await client.kv.Delete(kv.DeleteRequest(range=kv.Range(prefix=prefix)))
    revisions.append(removed.header.transaction_revision)
    found, positions = await _watched(stream, revisions[-1])
    stream.cancel()
    assert [change.revision for change in found] == revisions
    assert positions == sorted(positions)
    assert positions[0] >= begun.revision
    assert [event.value for event in found[2].events] == [b"2"] * 4
    assert [event.version for event in found[2].events] == [3] * 4
    assert [event.HasField("value") for event in found[5].events] == [False] * 4
    asked.after = revisions[2]
    stream = client.kv.Watch(asked)
    assert (await stream.read()).revision == revisions[2]
    again, _ = await _watched(stream, revisions[-1])
    stream.cancel()
    assert again == found[3:]


async def _watched(stream: Any, upto: int) -> tuple[list[kv.Change], list[int]]:
    changes: list[kv.Change] = []
    positions: list[int] = []
    while not positions or positions[-1] < upto:
        response = await stream.read()
        changes += response.transactions
        positions.append(response.revision)
    progress = await stream.read()
    assert not progress.transactions
    assert progress.revision >= upto
    return changes, positions


async def sessions(client: Client) -> None:
    """Many calls in a message, of all kinds, good and bad: each has its reply."""
    prefix = PREFIX + b"session/"
    stream = client.session.Open()
    hello = await stream.read()
    assert hello.header.node
    assert not hello.replies
    puts = [
        session.Call(number=i, put=kv.PutRequest(key=prefix + b"%d" % i, value=b"v%d" % i)) for i in range(64)
    ]
    await stream.write(session.SessionRequest(calls=puts))
    replies = await _replies(stream, 64)
    assert {reply.WhichOneof("reply") for reply in replies.values()} == {"put"}
    await stream.write(
        session.SessionRequest(
            calls=[
                session.Call(number=100, get=kv.GetRequest(key=prefix + b"7")),
                session.Call(
                    number=101, txn=kv.TxnRequest(then=[get(prefix + b"8"), put(prefix + b"9", b"")])
                ),
                session.Call(number=102, delete=kv.DeleteRequest(key=prefix + b"10")),
                session.Call(number=103, get=kv.GetRequest()),
                session.Call(number=104),
                session.Call(number=105, txn=kv.TxnRequest(conditions=[absent(prefix + b"11")])),
            ]
        )
    )
    await stream.done_writing()
    replies = await _replies(stream, 6)
    assert replies[100].get.entry.value == b"v7"
    assert [r.WhichOneof("result") for r in replies[101].txn.results] == ["got", "written"]
    assert replies[101].txn.header.transaction_revision > 0
    assert replies[102].delete.count == 1
    assert replies[103].error.kind == Error.INVALID_REQUEST
    assert replies[103].error.message == "the key is empty"
    assert replies[104].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert not replies[105].txn.succeeded
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def _replies(stream: Any, count: int) -> dict[int, session.Reply]:
    found: dict[int, session.Reply] = {}
    while len(found) < count:
        for reply in (await stream.read()).replies:
            assert reply.number not in found
            found[reply.number] = reply
    return found


async def bad_requests(client: Client) -> None:
    """Each is told what is wrong with it, and changes nothing."""
    key = PREFIX + b"bad"
    future = (1 << 53) - 1
    expected = [
        (client.kv.Put(kv.PutRequest()), "the key is empty"),
        (client.kv.Get(kv.GetRequest()), "the key is empty"),
        (client.kv.Get(kv.GetRequest(key=key, revision=1 << 53)), "revision must be an integer from 0 to"),
        (client.kv.Get(kv.GetRequest(key=key, consistency=9)), "consistency must be strict or serializable"),  # type: ignore[arg-type]  # wrong on purpose
        (client.kv.Delete(kv.DeleteRequest()), "must have a key or a range"),
        (client.kv.Delete(kv.DeleteRequest(range=kv.Range())), "must have a prefix or an interval"),
        (client.kv.Txn(kv.TxnRequest()), "the transaction is empty"),
        (client.kv.Txn(kv.TxnRequest(then=[put(key, b"")], revision=5)), "transactions that only read"),
        (client.kv.Put(kv.PutRequest(key=key, id=kv.RequestId())), "id.client must be an integer from 1"),
        (client.kv.Snapshot(kv.SnapshotRequest(ttl_ms=1 << 60)), "ttl_ms must be at most"),
        (client.kv.ReleaseSnapshot(kv.ReleaseSnapshotRequest()), "name is empty"),
        (client.kv.Reserve(kv.ReserveRequest(name=1, keys=[b"a"], ttl_ms=1)), "name"),
        (client.kv.Reserve(kv.ReserveRequest(name=7, keys=[b"a"], ttl_ms=2001)), "ttl_ms"),
        (client.kv.Reserve(kv.ReserveRequest(name=7, ranges=[kv.Range()], ttl_ms=1)), "range"),
        (client.kv.Compact(kv.CompactRequest()), "the revision is missing"),
        (every(client.kv.Scan(kv.ScanRequest())), "must have a prefix or an interval"),
        (every(client.kv.Watch(kv.WatchRequest())), "from 1 to 1024 ranges"),
    ]
    for call, said in expected:
        code, error = await fails(call)
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST), said
        assert said in error.message
        assert not error.retryable
    for call in (
        client.kv.Get(kv.GetRequest(key=key, revision=future)),
        client.kv.Compact(kv.CompactRequest(revision=future)),
        every(client.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=key)], after=future))),
    ):
        code, error = await fails(call)
        assert (code, error.kind) == (grpc.StatusCode.OUT_OF_RANGE, Error.FUTURE_REVISION)
    assert not (await client.kv.Get(kv.GetRequest(key=key))).HasField("entry")


async def at_once(client: Client) -> None:
    """Many clients' counters add up."""
    key = PREFIX + b"counter"
    add = kv.TxnRequest(then=[kv.Operation(add=kv.Calculate(key=key, operand=1))])
    answers = await asyncio.gather(*(client.kv.Txn(add) for _ in range(50)))
    assert sorted(answer.results[0].number.value for answer in answers) == list(range(1, 51))


SCENARIOS = (
    single_keys,
    transactions,
    aborted_transactions,
    conditions,
    reads_in_transactions,
    repeated_requests,
    scans,
    watches,
    sessions,
    bad_requests,
    at_once,
    scans_in_parts,
    watches_that_end,
    snapshots,
    snapshots_by_name,
)
