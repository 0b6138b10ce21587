"""The options of the data source, as users write them, checked at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, TypeVar

from wbkv import EVERYTHING, KeyRange, between, prefix

from wbkv_pipeline.errors import PipelineError

T = TypeVar("T")

Use: TypeAlias = Literal["read", "write", "readStream", "writeStream"]

_EVERY: Final = frozenset({"read", "write", "readStream", "writeStream"})
_READS: Final = frozenset({"read", "readStream"})
_WRITES: Final = frozenset({"write", "writeStream"})

_USES: Final[dict[str, frozenset[str]]] = {
    "endpoints": _EVERY,
    "prefix": _READS,
    "prefixHex": _READS,
    "start": _READS,
    "startHex": _READS,
    "end": _READS,
    "endHex": _READS,
    "revision": frozenset({"read"}),
    "splits": frozenset({"read"}),
    "pushFilters": frozenset({"read"}),
    "snapshotTtl": frozenset({"read"}),
    "batchRows": _WRITES,
    "batchBytes": _WRITES,
    "inFlight": _WRITES,
    "jobId": frozenset({"write"}),
    "rewrite": frozenset({"writeStream"}),
    "startingRevision": frozenset({"readStream"}),
    "maxSecondsPerBatch": frozenset({"readStream"}),
    # Spark's own, which it hands on.
    "checkpointLocation": frozenset({"writeStream"}),
    "queryName": frozenset({"writeStream"}),
}
_NAMES: Final = {name.lower(): name for name in _USES}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for. It travels to the executors."""

    given: frozenset[str]
    endpoints: str | None
    """None: the client's own default."""
    keys: KeyRange
    revision: int
    """0: as of now."""
    splits: int
    """0: by the number of partitions."""
    push_filters: bool
    """Only for a DataFrame that is used once: see `reading`."""
    snapshot_ttl_s: float
    batch_rows: int
    batch_bytes: int
    in_flight: int
    job: str | None
    rewrite: bool
    starting_revision: int | Literal["latest", "earliest"]
    max_batch_s: float
    """How much of the store's time a micro-batch may hold, from its first change on; 0: all there is."""

    def fits(self, use: Use) -> bool:
        """Whether all options have a meaning there."""
        return all(use in _USES[name] for name in self.given)

    def check_use(self, use: Use) -> None:
        """Refuse options that would be without effect."""
        for name in sorted(self.given):
            if use not in _USES[name]:
                uses = " and ".join(sorted(_USES[name]))
                raise PipelineError(f"wbkv: the option {name} is for {uses}, not for {use}")


def parse(given: Mapping[str, str]) -> Options:
    """Read the options; names in upper or lower case."""
    known = {}
    for key, text in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), _NAMES, 1)
            hint = f"did you mean {_NAMES[near[0]]}?" if near else f"there are {', '.join(_USES)}"
            raise PipelineError(f"wbkv: there is no option {key}: {hint}")
        known[name] = text
    value = _Values(known)
    return Options(
        given=frozenset(known),
        # What the driver's environment says holds on executors too, whatever theirs says.
        endpoints=known.get("endpoints") or os.environ.get("WBKV_ENDPOINTS") or None,
        keys=_keys(value),
        revision=value.get("revision", 0, _whole(1)),
        splits=value.get("splits", 0, _whole(1)),
        push_filters=value.get("pushFilters", False, _yes_no),
        snapshot_ttl_s=value.get("snapshotTtl", 600.0, _seconds),
        batch_rows=value.get("batchRows", 500, _whole(1)),
        batch_bytes=value.get("batchBytes", 1 << 20, _whole(1)),
        in_flight=value.get("inFlight", 64, _whole(1)),
        job=value.get("jobId", None, _word),
        rewrite=value.get("rewrite", False, _yes_no),
        starting_revision=value.get("startingRevision", "latest", _starting),
        max_batch_s=value.get("maxSecondsPerBatch", 0.0, _seconds),
    )


class _Values:
    """Texts, and what they must be."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts: Final = texts

    def get(self, name: str, default: T, read: Callable[[str], T]) -> T:
        if name not in self.texts:
            return default
        text = self.texts[name]
        try:
            return read(text)
        except ValueError as error:
            raise PipelineError(f"wbkv: the option {name} must be {error}, not {text!r}") from None

    def key(self, name: str) -> bytes | None:
        """A key, or part of one, as text or in hexadecimal digits."""
        hexadecimal = f"{name}Hex"
        if name in self.texts and hexadecimal in self.texts:
            raise PipelineError(f"wbkv: give the option {name} or {hexadecimal}, not both")
        if hexadecimal in self.texts:
            return self.get(hexadecimal, b"", _hex)
        return self.texts[name].encode() if name in self.texts else None


def _keys(value: _Values) -> KeyRange:
    """Which keys are asked for."""
    head, start, end = value.key("prefix"), value.key("start"), value.key("end")
    if head is not None:
        if start is not None or end is not None:
            raise PipelineError("wbkv: give the option prefix, or start and end, not both")
        return prefix(head)
    if start is None and end is None:
        return EVERYTHING
    try:
        return between(start or b"", end)
    except ValueError as error:
        raise PipelineError(f"wbkv: {error}: the option end must be above start") from None


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(f"a whole number, {least} or more")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:
        raise ValueError("a number of seconds up to a day")
    return seconds


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("hexadecimal digits") from None


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError("a name")
    return text


def _yes_no(text: str) -> bool:
    return _one_of(text.lower(), ("true", "false")) == "true"


def _starting(text: str) -> int | Literal["latest", "earliest"]:
    lower = text.strip().lower()
    if lower == "latest":
        return "latest"
    if lower == "earliest":
        return "earliest"
    try:
        return _whole(1)(text)
    except ValueError:
        raise ValueError("latest, earliest or a revision") from None


def _one_of(text: str, allowed: Iterable[str]) -> str:
    if text not in allowed:
        raise ValueError(" or ".join(allowed))
    return text
