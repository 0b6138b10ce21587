"""Plans of measurements, which are checked before anything starts; and the shares of client processes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from wbkv.cli.hints import did_you_mean

from kvstore.config.checks import CLOCKS, DURABILITY
from multicast import PROTOCOLS, VARIANTS
from multicast.protocol import Timing
from multicast.types import GROUPS_MAX

LEVELS: Final = ("multicast", "store")

REGIONS: Final = ("r1", "r2", "r3")
DELAYS_MS: Final = {"r1-r2": 30.0, "r2-r3": 37.5, "r1-r3": 65.0}
"""One way. Round trips between the paper's regions take 60, 75 and 130 ms."""

COMBINATIONS_MAX: Final = 4096
"""Destination sets that are listed; of more than these, each is drawn anew."""

PAYLOAD_MAX: Final = 1 << 20


class PlanError(ValueError):
    """An invalid plan. The message begins with the name of the field that is wrong."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name}: {problem}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is measured, on which cluster. A plan is valid: the constructor checks it."""

    protocol: str = "whitebox"
    level: str = "multicast"
    """"multicast": messages to groups that do nothing but order them; or "store": transactions of one put for
    each partition."""
    groups: int = 10
    replicas: int = 0
    """Members of a group. 0 means the default: 3, or 1 for Skeen's protocol, which is not replicated."""
    dest: int = 2
    """Every message goes to a random set of so many groups."""
    clients: int | None = 200
    """Messages in flight, of all processes together. Of an open loop, the most: None is without bound."""
    rate: float | None = None
    """An open loop of so many messages per second, at random times that are fixed in advance; without it, a
    closed one, which sends the next message when one is answered."""
    conditions: bool = False
    """At the store level: every transaction has a condition on each of its keys, which holds."""
    payload: int = 20
    """Bytes of a message, or of each value."""
    keys: int = 0
    """At the store level: put random ones of so many keys that are stored (`benchmarks.scan.fill`), `dest` of
    them in a transaction, in whichever partitions they are. 0: some hundred keys of each partition."""
    processes: int = 1
    """Of clients."""
    warm_up_s: float = 1.0
    seconds: float = 3.0
    """Of one round."""
    rounds: int = 3
    durability: str = "os"
    clock: str = ""
    """Of nodes: "logical" or "hybrid". Empty means the default: logical, and hybrid for the store."""
    regions: bool = False
    """Emulate the three regions of the paper, with a node and a share of the clients in each."""
    seed: int = 0
    patience_s: float = 10.0
    """How long clients wait for an answer before they count an error; also at the end."""
    timing: Timing | None = None

    def __post_init__(self) -> None:
        # Defaults that depend on other fields.
        if self.replicas == 0:
            object.__setattr__(self, "replicas", 1 if self.protocol == "skeen" else 3)
        if not self.clock:
            object.__setattr__(self, "clock", "hybrid" if self.level == "store" else "logical")
        _check(self)

    @property
    def nodes(self) -> int:
        """At least three, so that groups of one spread over several."""
        return max(3, self.replicas)

    @property
    def end_s(self) -> float:
        """From the start of the warm-up to the end of the last round."""
        return self.warm_up_s + self.rounds * self.seconds

    def share(self, process: int, lane: int, lanes: int) -> int | None:
        """How many of the messages in flight are those of one lane of a process."""
        if self.clients is None:
            return None
        number, count = process * lanes + lane, self.processes * lanes
        return self.clients // count + (number < self.clients % count)


def _check(plan: Plan) -> None:
    _choice("protocol", plan.protocol, [*PROTOCOLS, *VARIANTS])
    _choice("level", plan.level, LEVELS)
    _choice("durability", plan.durability, DURABILITY)
    _choice("clock", plan.clock, CLOCKS)
    for name, most in (("groups", GROUPS_MAX), ("replicas", 99), ("processes", 64), ("rounds", 10_000)):
        _whole(name, getattr(plan, name), 1, most)
    _whole("payload", plan.payload, 0, PAYLOAD_MAX)
    _whole("keys", plan.keys, 0, 10**9)
    _whole("dest", plan.dest, 1, plan.groups, f"there are {plan.groups} groups")
    _positive("seconds", plan.seconds)
    _positive("patience_s", plan.patience_s)
    if not 0 <= plan.warm_up_s < math.inf:
        raise PlanError("warm_up_s", f"{plan.warm_up_s} is not a duration of 0 s or more")
    if plan.rate is not None:
        _positive("rate", plan.rate)
    if plan.clients is not None:
        _whole("clients", plan.clients, plan.processes, 10**6, f"{plan.processes} processes need one each")
    elif plan.rate is None:
        raise PlanError("clients", "a closed loop needs a number of clients")
    if plan.replicas % 2 == 0:
        raise PlanError("replicas", f"{plan.replicas} is even; a group has an odd number of members")
    if plan.protocol == "skeen" and plan.replicas > 1:
        raise PlanError("replicas", f"Skeen's protocol has groups of 1, not {plan.replicas}")
    if plan.level == "store" and plan.clock == "logical":
        raise PlanError(
            "clock", '"logical" is not valid at the store level, where revisions are times; use "hybrid"'
        )
    if plan.level != "store" and plan.conditions:
        raise PlanError("conditions", "only transactions have conditions; use the store level")
    if plan.level != "store" and plan.keys:
        raise PlanError("keys", "only transactions have keys; use the store level")
    if plan.level == "store" and plan.regions:
        raise PlanError("regions", "clients of the store have no region; use the multicast level")


def _choice(name: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise PlanError(name, f"{value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}")


def _whole(name: str, value: int, least: int, most: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PlanError(name, f"{value} is not in {least}..{most}" + (f": {why}" if why else ""))


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise PlanError(name, f"{value} is not a positive number")


def chooser(groups: int, dest: int, rng: random.Random) -> Callable[[], tuple[int, ...]]:
    """Return a function that draws a set of `dest` groups, all sets equally likely."""
    if math.comb(groups, dest) <= COMBINATIONS_MAX:
        sets = list(itertools.combinations(range(groups), dest))
        count, number = len(sets), rng.random
        return lambda: sets[int(number() * count)]
    return lambda: tuple(sorted(rng.sample(range(groups), dest)))
