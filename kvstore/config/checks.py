"""What a configuration may say: choices, limits, and the checks that every `Config` passes.

A check raises `ConfigError`, which names the key, its value, and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args, get_type_hints

from kvstore.config.addresses import INCARNATION_MAX, NAME, NodeId, split_address
from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.membership import Configuration
from multicast.protocol import Protocol, Timing
from multicast.types import GROUPS_MAX, disk_of

if TYPE_CHECKING:
    from kvstore.config.model import Config

Durability: TypeAlias = Literal["fsync", "os"]
"""What an acknowledgement waits for: the disk, or only the operating system."""

DURABILITY: Final[tuple[Durability, ...]] = get_args(Durability)
APPLICATIONS: Final = ("store", "multicast")
CLOCKS: Final = ("hybrid", "logical")
PLACEMENTS: Final = ("hashed", "ordered")
KNOWN_PROTOCOLS: Final[Mapping[str, type[Protocol]]] = PROTOCOLS | VARIANTS
TIMING_TYPES: Final = get_type_hints(Timing)
"""Types of the fields of `Timing`, by name."""

DELAY_MAX_MS: Final = 60_000
SCRUB_HOURS_MIN, SCRUB_HOURS_MAX = 0.001, 8760.0
LIMITS_MAX: Final[Mapping[str, int]] = {
    "key_bytes": 4 << 10,
    "value_bytes": 8 << 20,
    "transaction_bytes": 16 << 20,
    "operations": 1 << 16,
    "scan_bytes": 16 << 20,
}
"""The most that limits may be raised to: what messages, and the disk, can hold."""

MESSAGE_BYTES_MAX: Final = 32 << 20
"""The largest message between nodes."""
OPERATION_BYTES: Final = 64
"""The most that an operation's encoding adds to its keys and values."""
ENCODING_BYTES: Final = 4 << 10
"""The most that the encoding of a request, and of the message that carries it, adds beyond that."""


class ConfigError(ValueError):
    """A configuration that cannot work. The message names the file, the line, the key and its value."""

    def __init__(self, problem: str, keys: Iterable[str] = (), where: str = "") -> None:
        self.problem = problem
        self.keys = tuple(keys)
        super().__init__(": ".join(filter(None, (where, ".".join(map(show_key, self.keys)), problem))))


def check(config: Config) -> None:
    """Raise `ConfigError` if the configuration cannot work."""
    _check_name(config.id, ("cluster", "id"))
    _check_choice(config.protocol, KNOWN_PROTOCOLS, ("cluster", "protocol"))
    _check_choice(config.durability, DURABILITY, ("cluster", "durability"))
    _check_choice(config.application, APPLICATIONS, ("cluster", "application"))
    _check_choice(config.clock, CLOCKS, ("cluster", "clock"))
    if config.clock == "logical" and config.application == "store":
        # The store expires sessions by the age of their revisions, and rejects revisions of the future.
        problem = '"logical" does not work with the store, whose revisions follow the time of day'
        raise ConfigError(problem, ("cluster", "clock"))
    for name in TIMING_TYPES:
        if not 0 <= getattr(config.timing, name) < 2**63:
            raise ConfigError(f"{getattr(config.timing, name)} is not in 0..2^63-1", ("timing", name))
    _check_nodes(config)
    _check_groups(config)
    _check_store(config)
    if not (config.scrub_hours == 0 or SCRUB_HOURS_MIN <= config.scrub_hours <= SCRUB_HOURS_MAX):
        problem = f"{config.scrub_hours} is not in {SCRUB_HOURS_MIN}..{SCRUB_HOURS_MAX} (or 0, for never)"
        raise ConfigError(problem, ("disk", "scrub_hours"))
    if config.trace is not None:
        _check_folder(config.trace, ("trace", "deliveries"))
    for key, delay_ms in config.delays_ms.items():
        ends_of(config, key)
        if not 0 <= delay_ms <= DELAY_MAX_MS:
            raise ConfigError(f"{delay_ms} ms is not in 0..{DELAY_MAX_MS}", ("delays", key))


def _check_nodes(config: Config) -> None:
    if not config.nodes:
        raise ConfigError("a cluster needs at least one node", ("nodes",))
    seen: dict[object, NodeId] = {}
    for name, node in config.nodes.items():
        keys = ("nodes", name)
        _check_name(name, keys)
        if split_address(node.address) is None:
            raise ConfigError(f"{show(node.address)} is not HOST:PORT", (*keys, "address"))
        if node.api is not None and split_address(node.api) is None:
            raise ConfigError(f"{show(node.api)} is not HOST:PORT", (*keys, "api"))
        _check_folder(node.data, (*keys, "data"))
        incarnation = node.incarnation
        if incarnation is not None and not 1 <= incarnation <= INCARNATION_MAX:
            raise ConfigError(f"{incarnation:x} is not in 1..{INCARNATION_MAX:x}", (*keys, "incarnation"))
        if node.region is not None:
            _check_name(node.region, (*keys, "region"))
            if node.region in config.nodes:
                raise ConfigError(f"{show(node.region)} is a node's name already", (*keys, "region"))
        for key, value, shown in (
            ("address", (node.host, node.port), node.address),
            ("api", node.api and split_address(node.api), node.api),
            ("data", config.data(name), node.data),
            ("incarnation", incarnation and disk_of(incarnation), f"{incarnation or 0:016x}"),
        ):
            if value is not None and seen.setdefault(value, name) != name:
                raise ConfigError(f"{show(shown)} is used by {seen[value]} already", (*keys, key))


def _check_store(config: Config) -> None:
    store = config.store
    _check_choice(store.placement, PLACEMENTS, ("store", "placement"))
    wanted = len(config.groups) - 1 if store.placement == "ordered" else 0
    if len(store.splits) != wanted:
        problem = f"{len(store.splits)} keys; {len(config.groups)} groups with this placement need {wanted}"
        raise ConfigError(problem, ("store", "splits"))
    if "" in store.splits or list(store.splits) != sorted(set(store.splits), key=str.encode):
        raise ConfigError("keys must be in strictly ascending order", ("store", "splits"))
    for name, most in LIMITS_MAX.items():
        if not 1 <= getattr(store.limits, name) <= most:
            raise ConfigError(f"{getattr(store.limits, name)} is not in 1..{most}", ("store", name))
    size, operations = store.limits.transaction_bytes, store.limits.operations
    encoded = size + operations * OPERATION_BYTES + ENCODING_BYTES
    if encoded > MESSAGE_BYTES_MAX:
        problem = (
            f"a transaction of {size} bytes and {operations} operations takes up to {encoded} bytes, "
            f"and a message at most {MESSAGE_BYTES_MAX}; lower either limit"
        )
        raise ConfigError(problem, ("store", "transaction_bytes"))


def _check_groups(config: Config) -> None:
    if not config.groups:
        raise ConfigError("a cluster needs at least one group", ("groups",))
    for group, members in config.groups.items():
        keys = ("groups", str(group), "members")
        if not 0 <= group < GROUPS_MAX:
            raise ConfigError(f"group ids are 0..{GROUPS_MAX - 1}", keys[:2])
        for member in members:
            if member not in config.nodes:
                raise ConfigError(f"unknown node {show(member)}{suggestion(member, config.nodes)}", keys)
            if list(members).count(member) > 1:
                raise ConfigError(f"{show(member)} is listed twice", keys)
            if member not in config.incarnations:
                raise ConfigError("missing: it is in a group", ("nodes", member, "incarnation"))
        try:
            Configuration(group, 0, config.members(group))
        except InvalidArgument as error:
            raise ConfigError(str(error), keys) from None
    try:
        config.protocol_type.check_topology(config.topology)
    except InvalidArgument as error:
        raise ConfigError(f"{show(config.protocol)}: {error}", ("cluster", "protocol")) from None


def _check_name(name: str, keys: Sequence[str]) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{show(name)} is not a valid name: use letters, digits, '_', '-' and '.'", keys)


def _check_folder(folder: str, keys: Sequence[str]) -> None:
    if not folder.strip() or "\0" in folder:
        raise ConfigError(f"{show(folder)} is not a folder", keys)


def _check_choice(value: str, allowed: Iterable[str], keys: Sequence[str]) -> None:
    allowed = list(allowed)
    if value not in allowed:
        meant = suggestion(value, allowed, listed=True)
        raise ConfigError(f"{show(value)} is not one of {', '.join(allowed)}{meant}", keys)


def ends_of(config: Config, key: str) -> tuple[str, str]:
    """Return the two nodes or regions of a delay, whose names may have dashes themselves."""
    known = {name for node in config.nodes for name in config.names(node)}
    parts = key.split("-")
    splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    found = [(a, b) for a, b in splits if a in known and b in known]
    if not found:
        raise ConfigError(f"not FROM-TO, two of {', '.join(sorted(known))}", ("delays", key))
    if len(found) > 1:
        raise ConfigError("ambiguous: " + " or ".join(f"{a} to {b}" for a, b in found), ("delays", key))
    (pair,) = found
    if pair[0] == pair[1] and pair[0] in config.nodes:
        raise ConfigError("a node has no link to itself", ("delays", key))
    return pair


# Keys and values in errors


def show_key(key: str) -> str:
    """Return a key as TOML has it: quoted if need be."""
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else show(key)


def show(value: object) -> str:
    """Return a value as TOML has it: strings as in JSON, except for DEL. Others appear only in errors."""
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def suggestion(wrong: str, allowed: Iterable[str], *, listed: bool = False) -> str:
    """Return the end of an error: what was probably meant, or else what is allowed, unless that is listed."""
    allowed = list(allowed)
    close = difflib.get_close_matches(wrong, allowed, 1)
    if close:
        return f"; did you mean {show(close[0])}?"
    return f"; known: {', '.join(allowed)}" if allowed and not listed else ""
