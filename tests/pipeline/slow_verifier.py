"""The checks of `wbkv_pipeline.verifying`, literally by definition: slow, and easy to believe."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from tests.pipeline.trace_maker import Row, Trace, covers

Key = tuple[Any, ...]


def verify(trace: Trace, *, begins: int, untraced_clients: bool) -> set[str]:
    """Return the names of the checks that fail."""
    failing = set(_lines(trace)) | set(_messages(trace)) | set(_requests(trace, untraced_clients))
    return failing | set(_gaps(trace)) | set(_reads(trace, begins, untraced_clients))


def _logs(trace: Trace) -> list[list[Row]]:
    def owner(row: Row) -> Key:
        return row["run"], row["group"]

    rows = sorted(trace.deliveries, key=lambda row: (*owner(row), row["position"], row["gts"]))
    return [list(log) for _, log in groupby(rows, owner)]


def _id(row: Row) -> Key:
    return row["origin"], row["number"], row["digest"]


def _follows(row: Row, after: Row) -> bool:
    """Whether the line follows the one before it."""
    return bool(after["position"] == row["position"] + 1 and after["kind"] != "begin")


def _lines(trace: Trace) -> Iterator[str]:
    for log in _logs(trace):
        if log[0]["position"] != 1 or log[0]["kind"] != "begin":
            yield "positions"
        for row, after in pairwise(log):
            if not _follows(row, after):
                yield "positions"
            else:
                again = after["kind"] == "jump" or _id(row) == _id(after)
                if after["gts"] < row["gts"] or (after["gts"] == row["gts"] and not again):
                    yield "order"
        for row in log:
            if row["kind"] == "message" and row["group"] not in row["destinations"]:
                yield "validity"


def _delivered(trace: Trace) -> list[Row]:
    return [row for row in trace.deliveries if row["kind"] == "message"]


def _messages(trace: Trace) -> Iterator[str]:
    rows = _delivered(trace)
    for one in rows:
        for other in rows:
            same = _id(one) == _id(other)
            if one is not other and same and all(one[name] == other[name] for name in ("run", "group")):
                yield "integrity"
            if same != (one["gts"] == other["gts"]):
                yield "timestamps"
            if same and any(one[name] != other[name] for name in ("destinations", "client", "sequence")):
                yield "timestamps"


def _ids(trace: Trace) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for request in trace.requests:
        if request["client"] is not None:
            found.setdefault((request["client"], request["sequence"]), []).append(request)
    return found


def _carriers(trace: Trace, request: Row) -> list[int]:
    return sorted(
        row["gts"]
        for row in _agreed(trace)
        if (row["client"], row["sequence"]) == (request["client"], request["sequence"])
        and row["destinations"] == request["partitions"]
    )


def _agreed(trace: Trace) -> list[Row]:
    """One delivery of each timestamp: the lowest, where replicas differ."""
    found: dict[int, Row] = {}
    for row in _delivered(trace):
        if row["gts"] not in found or _rank(row) < _rank(found[row["gts"]]):
            found[row["gts"]] = row
    return list(found.values())


def _rank(row: Row) -> Key:
    whose = (-1, -1) if row["client"] is None else (row["client"], row["sequence"])
    return *_id(row), row["destinations"], *whose


def _requests(trace: Trace, untraced_clients: bool) -> Iterator[str]:  # noqa: FBT001 - a helper
    ids = _ids(trace)
    for row in _agreed(trace):
        if row["client"] is None:
            continue
        asked = ids.get((row["client"], row["sequence"]))
        if asked is None:
            if not untraced_clients:
                yield "validity"
        elif not any(request["partitions"] == row["destinations"] for request in asked):
            yield "validity"
    for asked in ids.values():
        for one in asked:
            same = [request for request in asked if request["partitions"] == one["partitions"]]
            acknowledged = {request["revision"] for request in same if _wrote(request)}
            carriers = _carriers(trace, one)
            if len(acknowledged) > 1:
                yield "once"
            if any(request["outcome"] == "failed" for request in same) or not acknowledged:
                continue
            if min(acknowledged) in carriers and carriers[0] < min(acknowledged):
                yield "once"


def _wrote(request: Row) -> bool:
    return bool(request["outcome"] == "ok" and request["client"] is not None and request["writes"])


def _gaps(trace: Trace) -> Iterator[str]:
    agreed = {row["gts"] for row in _delivered(trace)}
    for gts in list(agreed):
        if len({str(_rank(row)) for row in trace.copies(gts)}) > 1:
            agreed.discard(gts)
    for log in _logs(trace):
        group = log[0]["group"]
        here = {row["gts"] for row in _delivered(trace) if row["group"] == group}
        there = {
            row["gts"]
            for row in _delivered(trace)
            if group in row["destinations"] and row["gts"] in agreed - here
        }
        claimed = {
            request["revision"]
            for request in _lowest(trace)
            if group in request["partitions"] and request["revision"] not in _carriers(trace, request)
        }
        for row, after in pairwise(log):
            if after["kind"] != "message" or not _follows(row, after):
                continue
            for check, missing in (
                ("agreement", here - {after["gts"]}),
                ("projection", there),
                ("completeness", claimed),
            ):
                if any(row["gts"] < gts <= after["gts"] for gts in missing):
                    yield check


def _lowest(trace: Trace) -> list[Row]:
    """The first answer of each acknowledged request."""
    found: dict[Key, Row] = {}
    for request in sorted(filter(_wrote, trace.requests), key=lambda request: request["revision"]):
        found.setdefault((request["client"], request["sequence"], *request["partitions"]), request)
    return list(found.values())


def _reads(trace: Trace, begins: int, untraced_clients: bool) -> Iterator[str]:  # noqa: FBT001 - a helper
    owners = {row["gts"]: row for row in _agreed(trace)}
    ids = _ids(trace)
    for request in trace.requests:
        for read in request["reads"] if request["outcome"] == "ok" else []:
            key, seen = read["key"], read["revision"]
            certain, possible, lost = _versions(trace, key)
            before = [gts for gts in certain if _is_before(gts, request)]
            bound = max([*before, *([] if request["exact"] else _known(trace, certain, request))], default=0)
            top = request["revision"] if request["exact"] else WIDE
            candidates = {bound: certain[bound]} if bound else {}
            for gts, kinds in [*certain.items(), *possible.items()]:
                if bound < gts <= top and (not request["exact"] or _is_before(gts, request)):
                    candidates.setdefault(gts, set()).update(kinds)
            if seen == 0:
                unknown = not bound or untraced_clients or "gone" in lost
                if not unknown and not any("gone" in kinds for kinds in candidates.values()):
                    yield "reads"
            elif seen > top or seen < bound:
                yield "reads"
            elif seen in candidates:
                if "put" not in candidates[seen] or (seen in certain and _is_later(trace, seen, request)):
                    yield "reads"
            elif seen >= begins and "put" not in lost and not (seen == top and _is_own(request, key)):
                yield from _strange(owners.get(seen), ids, untraced_clients)


WIDE = 1 << 60


def _is_before(gts: int, request: Row) -> bool:
    own_place = request["exact"] and request["writes"]
    return bool(gts < request["revision"] if own_place else gts <= request["revision"])


def _is_own(request: Row, key: str) -> bool:
    return any(covers(write, key) and not write["removed"] for write in request["writes"])


def _versions(trace: Trace, key: str) -> tuple[dict[int, set[str]], dict[int, set[str]], set[str]]:
    """Certain versions, possible versions, and possible ones without a known position."""
    certain: dict[int, set[str]] = {}
    possible: dict[int, set[str]] = {}
    lost: set[str] = set()
    for request in trace.requests:
        kinds = {"gone" if write["removed"] else "put" for write in request["writes"] if covers(write, key)}
        if not kinds:
            continue
        if request["outcome"] == "ok":
            certain.setdefault(request["revision"], set()).update(kinds)
        elif request["outcome"] == "unknown":
            whole = [other for other in trace.requests if _same(other, request)]
            if any(other["outcome"] == "ok" for other in whole):
                continue
            carriers = _carriers(trace, request)
            if carriers:
                possible.setdefault(carriers[0], set()).update(kinds)
            else:
                lost |= kinds
    return certain, possible, lost


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("client", "sequence", "partitions"))


def _known(trace: Trace, certain: dict[int, set[str]], request: Row) -> list[int]:
    """Revisions that were acknowledged before the request began."""
    return [gts for gts in certain if any(by["end_us"] < request["start_us"] for by in _writers(trace, gts))]


def _is_later(trace: Trace, gts: int, request: Row) -> bool:
    return bool(min(by["start_us"] for by in _writers(trace, gts)) > request["end_us"])


def _writers(trace: Trace, gts: int) -> list[Row]:
    return [by for by in trace.requests if by["outcome"] == "ok" and by["revision"] == gts and by["writes"]]


def _strange(owner: Row | None, ids: dict[Key, list[Row]], untraced_clients: bool) -> Iterator[str]:  # noqa: FBT001 - a helper
    asked = [] if owner is None else ids.get((owner["client"], owner["sequence"]), [])
    mine = [request for request in asked if owner and request["partitions"] == owner["destinations"]]
    outcomes = {request["outcome"] for request in mine}
    if outcomes == {"failed"}:
        yield "failed"
    elif "ok" in outcomes or (not outcomes and not untraced_clients):
        yield "reads"
