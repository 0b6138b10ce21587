"""The store's state machine: what ordered messages do to one group's keys, as a function of their order.

Nothing here knows time, chance, files or the wire. `Machine` takes deliveries and votes and gives effects;
`Store` and `Picture` are all that it remembers.

- `request`, `results`, `commands`: what a message may ask, and what becomes of it;
- `placement`: which group has which key;
- `locks`: who may execute;
- `versions`, on the maps of `ordered`: values by revision, and the change feed;
- `operations`: conditions and operations, carried out;
- `sessions`: exactly once;
- `machine`: all of it together.
"""

from kvstore.machine.commands import Command, Delivered
from kvstore.machine.machine import Effects, Executed, Machine, Picture, Store, Vote, Waiting
from kvstore.machine.ordered import MemoryMap, OrderedMap
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import InvalidRequest, Limits, Transaction, validate
from kvstore.machine.versions import Compacted, NotYet

__all__ = [
    "Command",
    "Compacted",
    "Delivered",
    "Effects",
    "Executed",
    "InvalidRequest",
    "Limits",
    "Machine",
    "MemoryMap",
    "NotYet",
    "OrderedMap",
    "Picture",
    "Placement",
    "Scheme",
    "Store",
    "Transaction",
    "Vote",
    "Waiting",
    "validate",
]
