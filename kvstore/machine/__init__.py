"""The store's state machine: what ordered messages do to one group's keys, as a function of their order.

Nothing here knows time, chance, files or the wire. `Machine` takes deliveries and votes and gives effects;
`Store` and `MachineState` are all that it remembers.

- `request`, `results`, `commands`: what a message may ask, and what becomes of it;
- `placement`: which group has which key;
- `locks`: who may execute;
- `versions`, on the maps of `ordered`: values by revision, and the change feed;
- `operations`: conditions and operations, carried out;
- `sessions`: exactly once;
- `machine`: all of it together;
- `merge`: what the groups of a transaction have done, as one;
- `codec`: all of it as bytes.
"""

from kvstore.machine.codec import (
    TABLES,
    Unreadable,
    decode_machine_state,
    decode_request,
    decode_result,
    encode_machine_state,
    encode_request,
    encode_result,
)
from kvstore.machine.commands import Command, Delivered, Request
from kvstore.machine.machine import Machine
from kvstore.machine.merge import Merged, merge
from kvstore.machine.ordered import MemoryMap, OrderedMap, Table
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Footprint, InvalidRequest, Limits, Transaction, validate
from kvstore.machine.results import Outcome, Result
from kvstore.machine.state import Effects, Executed, MachineState, Store, Vote
from kvstore.machine.versions import Compacted, NotYet

__all__ = [
    "TABLES",
    "Command",
    "Compacted",
    "Delivered",
    "Effects",
    "Executed",
    "Footprint",
    "InvalidRequest",
    "Limits",
    "Machine",
    "MachineState",
    "MemoryMap",
    "Merged",
    "NotYet",
    "OrderedMap",
    "Outcome",
    "Placement",
    "Request",
    "Result",
    "Scheme",
    "Store",
    "Table",
    "Transaction",
    "Unreadable",
    "Vote",
    "decode_machine_state",
    "decode_request",
    "decode_result",
    "encode_machine_state",
    "encode_request",
    "encode_result",
    "merge",
    "validate",
]
