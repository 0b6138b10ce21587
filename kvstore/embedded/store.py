"""A whole store inside a process: all partitions, no network; a folder, and a thread.

It is a cluster of one node, and its folder looks the same: `wbkv up --data FOLDER` serves it while no process
has it open. The node, its disk and the API's methods are those of every server (`engine`, `api`); requests
and responses are passed as they are, without being serialized and parsed.

The loop runs in a daemon thread, which ends when the store is closed, forgotten, or the interpreter exits.
After a fork the store belongs to the parent: neither the thread nor LMDB survives in the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, cast

from google.protobuf.message import Message
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.cluster import Cluster
from kvstore.api.errors import to_error
from kvstore.api.kv import KV
from kvstore.api.methods import ApiContext, Methods, Options, Streaming, Unary
from kvstore.config.addresses import NodeId
from kvstore.config.checks import ConfigError, Durability
from kvstore.config.history import KEEP_HISTORY, KeepHistory
from kvstore.config.model import Config
from kvstore.config.toml import dump_config, load_config
from kvstore.embedded.loop_bridge import BridgedStream, Closed, Forked, LoopBridge
from kvstore.local import folder
from kvstore.local.disk import create_disk
from kvstore.local.folder import CONFIG
from kvstore.local.supervise import ClusterError
from kvstore.server.engine import Engine
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import DISK, sync_directory
from kvstore.wire.frames import Envelope
from multicast.protocol import Timing

logger = logging.getLogger(__name__)

CLOCK_STEP_S: Final = 3652 * 86_400.0
"""How far the clock may be ahead of the last time the store was open: ten years. It may be opened seldom, no
other store follows its clock, and there is no operator to ask; but one wrong clock must not end its
revisions."""

PARTITIONS: Final = 3
"""The partitions of a new store, by default."""

GRACE_S: Final = 1.0
"""How long a store that is being closed waits for calls in progress."""

UNFINISHED: Final = "n1.new"
"""The folder of a disk that is being created. No promise was ever made on it."""

_CODES: Final = {Error.INVALID_REQUEST: 3, Error.OUTCOME_UNKNOWN: 2, Error.UNAVAILABLE: 14}
"""gRPC status codes."""

_WRITES: Final = (kv.TxnRequest, kv.PutRequest, kv.DeleteRequest, kv.CompactRequest)


M = TypeVar("M", Unary, Streaming)


class EmbeddedError(Exception):
    """A store cannot be opened, or a call has failed, with the error that a network client would get."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


def open_store(
    path: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    durability: str | None = None,
    keep_history: str | None = None,
) -> Embedded:
    """Open the store of a folder, and create one if the folder is empty or missing.

    Arguments left as None keep the folder's stored value; a new store has three partitions and "fsync", and
    keeps history for a day. `keep_history` may be another one each time.
    Without a path the store is temporary: it is removed when it is closed, and its durability is "os".
    Raises `EmbeddedError`, and then has changed nothing.
    """
    try:
        if path is not None:
            return Embedded(*_claim(path, partitions, durability, keep_history))
        with contextlib.ExitStack() as undo:
            folder_ = tempfile.mkdtemp(prefix="wbkv-")
            undo.callback(shutil.rmtree, folder_, ignore_errors=True)
            claimed = _claim(folder_, partitions, durability or "os", keep_history)
            store = Embedded(*claimed, temporary=True)
            undo.pop_all()
            return store
    except (ValueError, OSError) as error:  # a `ConfigError` is a ValueError
        raise EmbeddedError(_permanent(Error.INVALID_REQUEST, str(error))) from error
    except (ClusterError, StorageError) as error:
        raise EmbeddedError(_permanent(Error.UNAVAILABLE, str(error))) from error


def _claim(
    path: str | os.PathLike[str],
    partitions: int | None,
    durability: str | None,
    keep_history: str | None,
) -> tuple[Config, int]:
    """Return the folder's configuration, created if it is new, and the lock on the folder."""
    if not os.fspath(path):
        raise ConfigError("the path is empty")
    if partitions is not None and type(partitions) is not int:
        raise ConfigError(f"partitions must be a whole number, not {partitions!r}")
    data = Path(path).absolute()
    wanted = cast(Durability, durability or "fsync")  # `Config` checks it, before anything is made
    new = Config.local(
        1, PARTITIONS if partitions is None else partitions, 1, data, durability=wanted,
        keep_history=KEEP_HISTORY if keep_history is None else keep_history,
        timing=Timing(clock_step_s=CLOCK_STEP_S),
    )  # fmt: skip
    if (data / DISK).exists():
        raise ConfigError(f"{data} is the disk of a node, not the folder of a store")
    lock = folder.lock(data)
    try:
        file = data / CONFIG
        if not file.exists():
            _make(new)
        config = load_config(file)
        folder.compare(
            file, config,
            {"nodes": 1, "application": "store", "partitions": partitions, "durability": durability},
        )  # fmt: skip
        if keep_history is not None:
            kept = KeepHistory.read(keep_history, config.keep_history.bytes)
            if kept != config.keep_history:
                config = replace(config, keep_history=kept)
                dump_config(config, file)
        (me,) = config.nodes
        if (data / UNFINISHED).exists() and not config.data(me).exists():
            (data / UNFINISHED).rename(config.data(me))
            sync_directory(data)
    except BaseException:
        _unlock(lock)
        raise
    return config, lock


def _make(config: Config) -> None:
    """Create a store. An interruption leaves a folder that shows how far it went: see `UNFINISHED`."""
    data = config.directory
    shutil.rmtree(data / UNFINISHED, ignore_errors=True)
    folder.check_empty(data)
    ((me, node),) = config.nodes.items()
    create_disk(replace(config, nodes={me: replace(node, data=UNFINISHED)}), me)
    dump_config(config, data / CONFIG)
    sync_directory(data.parent)


def _unlock(lock: int) -> None:
    """Release the lock, even if a process that was forked from this one still has the file open."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _permanent(kind: Error.Kind, why: str) -> Error:
    """Return a permanent error: retrying cannot succeed."""
    return Error(kind=kind, message=why, code=_CODES[kind])


class Embedded:
    """An open store. Calls may come from any thread."""

    def __init__(self, config: Config, lock: int, *, temporary: bool = False) -> None:
        self._inside = _Inside(config, lock, temporary=temporary)
        self._bridge, self._methods = self._inside.opened()
        weakref.finalize(self, self._inside.close)

    def call(self, method: str, request: Message, timeout_s: float) -> Future[Message]:
        """Call a method of `wbkv.v1.KV` or `wbkv.v1.Cluster`. A future that fails has an `EmbeddedError`."""
        return self._bridge.call(self._method(method, Unary, request), request, timeout_s)

    def stream(self, method: str, request: Message, timeout_s: float | None) -> BridgedStream:
        """Begin a scan or a watch. The time is for all of it."""
        return self._bridge.stream(self._method(method, Streaming, request), request, timeout_s)

    def _method(self, name: str, sort: type[M], request: Message) -> M:
        method = self._methods.get(name)
        if not isinstance(method, sort):
            raise TypeError(f"{name!r} is not a {sort.__name__.lower()} method")
        if not isinstance(request, method.kind):
            raise TypeError(f"{name} takes a {method.kind.__name__}, not a {type(request).__name__}")
        return method

    def close(self) -> None:
        """Let calls under way end, write everything down, and let others have the folder.

        Later calls fail. In a process that was forked from the one that has the store, nothing happens.
        """
        self._inside.close()


class _Inside:
    """The thread of an open store. It has no reference to the `Embedded`, which may be collected."""

    def __init__(self, config: Config, lock: int, *, temporary: bool) -> None:
        (self._me,) = config.nodes
        nodes = {self._me: replace(config.nodes[self._me], api=None)}  # there is no port
        self._config = replace(config, nodes=nodes)
        self._lock = lock
        self._temporary = temporary
        self._process = os.getpid()
        self._opened: Future[tuple[LoopBridge, Methods]] = Future()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"wbkv {config.directory}", daemon=True)
        self._thread.start()

    def opened(self) -> tuple[LoopBridge, Methods]:
        """Wait until the store serves. Raises if it cannot be opened."""
        try:
            return self._opened.result()
        except BaseException:  # also if the caller was interrupted
            self.close()
            raise

    def close(self) -> None:
        """End, and wait until everything is on the disk. In any thread, as often as you like."""
        with contextlib.suppress(Exception):  # it is closed, or could not be opened, or not by this process
            bridge, _ = self._opened.result()
            bridge.post(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        """The thread."""
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # whatever it is, a caller waits for it
            if self._opened.done():
                logger.exception("the store in %s has ended", self._config.directory)
            else:
                self._opened.set_exception(error)
        finally:
            _unlock(self._lock)
            if self._temporary:
                shutil.rmtree(self._config.directory, ignore_errors=True)

    async def _main(self) -> None:
        elected = asyncio.Event()

        def turned() -> None:
            partitions = [] if elected.is_set() else facts.topology().partitions.values()
            if partitions and all(partition.leads and partition.caught_up for partition in partitions):
                elected.set()

        engine = Engine(self._config, self._me, lambda _: _NoNetwork(), on_turned=turned)
        try:
            assert engine.service is not None
            facts = engine.facts(engine.status)
            api = ApiContext(engine.service, facts, Options(self._config.id, self._me))
            self._stop = engine.stopped.set
            self._topology = facts.topology
            bridge = LoopBridge(self._fail)
            engine.turn_soon()
            await _first(elected, engine.stopped)
            if engine.failure is not None:
                raise engine.failure
            self._opened.set_result((bridge, {**KV(api).methods, **Cluster(api).methods}))
            await engine.stopped.wait()
            self._failure = engine.failure
            bridge.close()
            for stream in bridge.streams:
                stream.cancel()
            if bridge.calls and engine.failure is None:
                await asyncio.wait(bridge.calls, timeout=GRACE_S)
            for call in bridge.calls:
                call.cancel()
            rest = bridge.calls | bridge.streams
            if rest:
                await asyncio.wait(rest)
            if engine.failure is None:
                engine.commit()
        finally:
            engine.rest()
            engine.close()  # the loop has nothing else to do any more

    def _fail(self, error: BaseException, kind: type[Message]) -> EmbeddedError:
        """Return the error that a caller gets."""
        where = self._config.directory
        if isinstance(error, Forked):
            why = f"the store in {where} is open in process {self._process}, which this one was forked from"
        elif isinstance(error, Closed | asyncio.CancelledError):
            why = f"the store in {where} is closed"
            if self._failure is not None:
                why = f"the store in {where} has failed: {self._failure}"
        else:
            return EmbeddedError(to_error(error, self._topology))
        cut_off = isinstance(error, asyncio.CancelledError) and issubclass(kind, _WRITES)
        return EmbeddedError(_permanent(Error.OUTCOME_UNKNOWN if cut_off else Error.UNAVAILABLE, why))


class _NoNetwork:
    """The network of a node without peers."""

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """There is no other node."""

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """There is no client that multicasts by itself."""

    peers: Collection[NodeId] = ()

    def backlog(self, node: NodeId) -> int:
        """There is no other node."""
        return 0

    def behind(self, node: NodeId) -> int:
        """There is no other node."""
        return 0


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them has happened."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # if it is there, calls take less time
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
