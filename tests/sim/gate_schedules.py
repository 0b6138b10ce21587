"""What the reply gate is for: conflicts that run against real time, over as many groups as one likes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kvstore.machine.request import Footprint
from multicast.types import GroupId
from tests.sim.gate_model import GateType, Transaction, World


@dataclass(frozen=True)
class Link:
    """A transaction of group A alone, between what came to A from afar and what is answered too early."""

    footprint: Footprint
    read: bool = False


Links: TypeAlias = tuple[Link, ...]

READS = (Link(Footprint(reads=(b"k",)), read=True),)
"""T1 of the design: it reads what T4 wrote, and is answered."""

COPIES = (Link(Footprint(reads=(b"k",), writes=(b"l",))), Link(Footprint(reads=(b"l",))))
"""It reads what another transaction of A alone has made of it."""

OVERWRITES = (Link(Footprint(reads=(b"k", b"l")), read=True), Link(Footprint(writes=(b"l",))))
"""It overwrites what a strict read saw together with it."""


def falling_path(
    gate: GateType | None,
    hops: int = 1,
    links: Links = READS,
    *,
    new_leader: bool = False,
    deposed: bool = False,
) -> World:
    """The four-transaction cycle of the design (hops = 1; A = 0, D = 1, C = 2), and longer ones.

    Each Zi is a message to groups i and i + 1. The last one, Z(hops), is the design's T3: pending with
    timestamp 7 at group `hops`, long on its way to the last group, C. Z(hops - 1) waits behind it there, but
    is delivered at its other group; all the others are delivered, up to Z0 at A, the design's T4. Then the
    links: what conflicts with Z0 at A. When the last link is answered, T2 starts at C. Z(hops) comes later.

    A new leader is elected before the links. Or the old one is *deposed* after the first of them, a read that
    it holds and will answer, and the new one delivers Z0 again.
    """
    late = 1000.0
    world = World(
        hops + 2,
        lambda what, name, group: (
            late
            if (what, name, group) == ("multicast", f"Z{hops}", hops + 1)
            else 0.0
            if what == "execute"
            else 1.0
        ),
        gate,
    )
    for group in world.groups[: hops + 1]:
        group.clock = 6 + 2 * (hops - group.number)
    world.groups[-1].clock = 3
    write = Footprint(writes=(b"k",))
    last = f"link{len(links) - 1}"

    def then(transaction: Transaction) -> None:
        if transaction.name == last:
            world.after(0.1, lambda: world.invoke("T2", {GroupId(hops + 1): write}))

    world.on_response = then
    for i in range(hops, -1, -1):
        world.invoke(f"Z{i}", {GroupId(i): write, GroupId(i + 1): write})
        world.run(until=world.now + 10)
    if new_leader:
        world.groups[0].change_leader()
    for i, link in enumerate(links):
        world.invoke(f"link{i}", {GroupId(0): link.footprint}, read=link.read)
        world.run(until=world.now + 1.5)
        if deposed and not i:
            world.groups[0].change_leader(behind=1)
    world.run()
    return world


def conflict(gate: GateType | None, *, late: float = 0.0, web: bool = False) -> float:
    """Return for how long a read of group 0 waits that conflicts with a transaction of groups 0 and 1.

    The latter is delivered at group 1 that much later. In a web, group 1 shares an open message with group 2.
    """
    world = World(
        3,
        lambda what, name, group: (
            0.0 if what == "execute" else 1.0 + late if (what, name, group) == ("propose", "Z", 1) else 1.0
        ),
        gate,
    )
    write = Footprint(writes=(b"k",))
    if web:
        before = Footprint(writes=(b"l",))
        world.invoke("before", {GroupId(1): before, GroupId(2): before})
        world.run(until=world.now + 0.1)
    world.invoke("Z", {GroupId(0): write, GroupId(1): write})
    world.run(until=world.now + 2.5)
    world.invoke("read", {GroupId(0): Footprint(reads=(b"k",))}, read=True)
    world.run()
    read = world.history[-1]
    assert read.responded is not None
    return read.responded - read.invoked - 2.0
