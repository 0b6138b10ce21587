"""The client for event loops: the names and arguments of `wbkv`, awaited.

Calls that are under way together share a stream to each node: `asyncio.gather` is enough to send many.
"""

from wbkv.aio.client import Client, Counter, Snapshot
from wbkv.aio.connect import connect, open  # noqa: A004 - as `wbkv.aio.open` it cannot be mistaken
from wbkv.aio.iterators import Scan, Watch
from wbkv.aio.lock import Lock
from wbkv.aio.opening import Opening
from wbkv.aio.table import Table
from wbkv.aio.transaction import Transaction, Txn

__all__ = [
    "Client",
    "Counter",
    "Lock",
    "Opening",
    "Scan",
    "Snapshot",
    "Table",
    "Transaction",
    "Txn",
    "Watch",
    "connect",
    "open",
]
