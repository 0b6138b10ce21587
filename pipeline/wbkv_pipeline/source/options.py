"""The options of the data source.

`SourceOptions` is the table of them: to add an option, add a field. Parsing, error messages and the table in
docs/reference/data-source.md come from the fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from wbkv import EVERYTHING, KeyRange, between, prefix

from wbkv_pipeline.errors import PipelineError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Use: TypeAlias = Literal["read", "write", "readStream", "writeStream"]

_READS: Final[tuple[Use, ...]] = ("read", "readStream")
_WRITES: Final[tuple[Use, ...]] = ("write", "writeStream")

SPARKS_OWN: Final[Mapping[str, tuple[Use, ...]]] = {
    "checkpointLocation": ("writeStream",),
    "queryName": ("writeStream",),
}
"""Options of Spark's own that Spark passes on to a data source."""


@dataclass(frozen=True, slots=True)
class OptionType(Generic[T_co]):
    """A type of values, which users write as text."""

    description: str
    parse: Callable[[str], T_co]
    """Raises ValueError if the text is not of this type."""


def _checked(description: str, convert: Callable[[str], T], valid: Callable[[T], bool]) -> OptionType[T]:
    def parse(text: str) -> T:
        value = convert(text)
        if not valid(value):
            raise ValueError(text)
        return value

    return OptionType(description, parse)


def _starting(text: str) -> int | Literal["latest", "earliest"]:
    match text.strip().lower():
        case "latest":
            return "latest"
        case "earliest":
            return "earliest"
    return COUNT.parse(text)


_BOOLEANS: Final = {"true": True, "false": False}

TEXT: Final = OptionType("text", str)
KEY: Final = OptionType("text", str.encode)
HEX: Final = OptionType("hexadecimal digits", bytes.fromhex)
NAME: Final = _checked("a name", str, lambda text: bool(text.strip()))
COUNT: Final = _checked(
    "a whole number, 1 or more", lambda text: int(text) if text.strip().isdecimal() else 0, lambda n: n >= 1
)
SECONDS: Final = _checked("a number of seconds up to a day", float, lambda s: 0.001 <= s <= 86_400)
BOOLEAN: Final = OptionType("true or false", lambda text: _BOOLEANS[text.lower()])
STARTING: Final = OptionType("latest, earliest or a revision", _starting)


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option, in the metadata of its field."""

    name: str
    uses: tuple[Use, ...]
    kind: OptionType[Any]
    about: str
    default: str
    """In words, for the reference."""


def option(
    name: str, uses: tuple[Use, ...], kind: OptionType[T], default: T, about: str, *, shown: str = ""
) -> T:
    """Declare an option. `shown` describes its default where the value does not."""
    shown = shown or f"`{str(default).lower().removesuffix('.0')}`"
    declared: T = field(default=default, metadata={"option": Option(name, uses, kind, about, shown)})
    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one DataFrame, read or written. They travel to the executors."""

    given: frozenset[str] = frozenset()
    """Names of the options that the user has set."""

    # fmt: off
    endpoints: str | None = option(
        "endpoints", _READS + _WRITES, TEXT, None, "nodes, as `host:port,host:port`",
        shown="`$WBKV_ENDPOINTS` of the driver, else 127.0.0.1:7400 to 7402")
    prefix: bytes | None = option(
        "prefix", _READS, KEY, None, "keys that begin with this", shown="all keys")
    prefix_hex: bytes | None = option(
        "prefixHex", _READS, HEX, None, "`prefix` as bytes", shown="all keys")
    start: bytes | None = option(
        "start", _READS, KEY, None, "keys from this one on", shown="the first key")
    start_hex: bytes | None = option(
        "startHex", _READS, HEX, None, "`start` as bytes", shown="the first key")
    end: bytes | None = option(
        "end", _READS, KEY, None, "keys below this one (an exclusive upper bound)", shown="no bound")
    end_hex: bytes | None = option(
        "endHex", _READS, HEX, None, "`end` as bytes", shown="no bound")
    revision: int = option(
        "revision", ("read",), COUNT, 0, "the revision to read",
        shown="one with everything that completed before `load`")
    splits: int = option(
        "splits", ("read",), COUNT, 0, "about how many tasks read; fewer where there are few keys",
        shown="two for each partition")
    snapshot_ttl_s: float = option(
        "snapshotTtl", ("read",), SECONDS, 600.0,
        "for how long after each use of the DataFrame its revision is protected from compaction")
    push_filters: bool = option(
        "pushFilters", ("read",), BOOLEAN, default=False,
        about="the store evaluates filters; only for a DataFrame that is used once: see [Reading](#reading)")
    batch_rows: int = option(
        "batchRows", _WRITES, COUNT, 500, "most rows of a transaction, where there is no `txn_id`")
    batch_bytes: int = option(
        "batchBytes", _WRITES, COUNT, 1 << 20, "most bytes of a transaction, where there is no `txn_id`")
    in_flight: int = option(
        "inFlight", _WRITES, COUNT, 64, "most transactions of a task that are in flight at once")
    job_id: str | None = option(
        "jobId", ("write",), NAME, None,
        "the job's name: the same job, run again within a day, writes only what is missing",
        shown="a random name")
    rewrite: bool = option(
        "rewrite", ("writeStream",), BOOLEAN, default=False,
        about="write all rows of a batch that began more than a day ago, whichever were written then")
    starting_revision: int | Literal["latest", "earliest"] = option(
        "startingRevision", ("readStream",), STARTING, "latest",
        "read the changes above this revision; `earliest`: all changes that are not compacted")
    max_batch_s: float = option(
        "maxSecondsPerBatch", ("readStream",), SECONDS, 0.0,
        "how much of the store's time a micro-batch holds, from its first change on", shown="no limit")
    # fmt: on

    @property
    def keys(self) -> KeyRange:
        """The keys to read. Raises `PipelineError` if the options contradict each other."""
        head = _one_of("prefix", self.prefix, self.prefix_hex)
        start, end = _one_of("start", self.start, self.start_hex), _one_of("end", self.end, self.end_hex)
        if head is not None:
            if start is not None or end is not None:
                raise PipelineError("wbkv: give the option prefix, or start and end, not both")
            return prefix(head)
        if start is None and end is None:
            return EVERYTHING
        try:
            return between(start or b"", end)
        except ValueError as error:
            raise PipelineError(f"wbkv: the options start and end: {error}") from None

    def fits(self, use: Use) -> bool:
        """Whether all given options have an effect on this use."""
        return all(use in _USES[name] for name in self.given)

    def check_use(self, use: Use) -> None:
        """Raise `PipelineError` if an option has no effect on this use."""
        for name in sorted(self.given):
            if use not in _USES[name]:
                uses = " and ".join(sorted(_USES[name]))
                raise PipelineError(f"wbkv: the option {name} is for {uses}, not for {use}")


OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(SourceOptions) if "option" in each.metadata
}
"""By field."""
_USES: Final = {**{each.name: each.uses for each in OPTIONS.values()}, **SPARKS_OWN}
_NAMES: Final = {name.lower(): name for name in _USES}


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Parse options as users write them. Their names are case-insensitive."""
    texts = {}
    for key, text in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), _NAMES, 1)
            hint = f"did you mean {_NAMES[near[0]]}?" if near else f"there are {', '.join(_USES)}"
            raise PipelineError(f"wbkv: there is no option {key}: {hint}")
        texts[name] = text
    values: dict[str, Any] = {}
    for attribute, each in OPTIONS.items():
        if each.name in texts:
            try:
                values[attribute] = each.kind.parse(texts[each.name])
            except (ValueError, KeyError):
                problem = f"must be {each.kind.description}, not {texts[each.name]!r}"
                raise PipelineError(f"wbkv: the option {each.name} {problem}") from None
    # The driver's environment decides for the executors, too, whatever theirs says.
    values["endpoints"] = values.get("endpoints") or os.environ.get("WBKV_ENDPOINTS") or None
    options = SourceOptions(given=frozenset(texts), **values)
    options.keys  # noqa: B018 - contradictory options fail here, before any is used
    return options


def _one_of(name: str, text: bytes | None, hexadecimal: bytes | None) -> bytes | None:
    if text is not None and hexadecimal is not None:
        raise PipelineError(f"wbkv: give the option {name} or {name}Hex, not both")
    return hexadecimal if text is None else text


def reference() -> str:
    """The table of options in docs/reference/data-source.md."""
    rows = ["| option | for | type | default | meaning |", "|---|---|---|---|---|"]
    for each in OPTIONS.values():
        uses = "all" if len(each.uses) == 4 else ", ".join(f"`{use}`" for use in each.uses)
        rows.append(f"| `{each.name}` | {uses} | {each.kind.description} | {each.default} | {each.about} |")
    return "\n".join(rows)
