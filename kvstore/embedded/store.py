"""A whole store inside a process: all partitions, no network; a folder, and a thread.

It is what a cluster of one node is, and its folder looks the same: `wbkv up --data FOLDER` serves it to
others while nobody has it open. The node, its disk and the API's methods are those of every server (`engine`,
`api`); requests and responses are passed as they are, without being written and read again.

The loop runs in a daemon thread, which ends when the store is closed, forgotten, or the interpreter exits.
Who forks leaves the store to the parent: neither the thread nor LMDB lives on in the child.
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
from collections.abc import Iterable, Sequence
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

logger = logging.getLogger(__name__)

PARTITIONS: Final = 3
"""Of a new store, unless said otherwise."""

GRACE_S: Final = 1.0
"""How long a store that is closed waits for calls that are under way."""

UNFINISHED: Final = "n1.new"
"""A disk that is being made. Nothing was ever promised on it."""

_CODES: Final = {Error.INVALID_REQUEST: 3, Error.OUTCOME_UNKNOWN: 2, Error.UNAVAILABLE: 14}
"""Of gRPC."""

_WRITES: Final = (kv.TxnRequest, kv.PutRequest, kv.DeleteRequest, kv.CompactRequest)


M = TypeVar("M", Unary, Streaming)


class EmbeddedError(Exception):
    """A store cannot be opened, or a call has failed: what a client over a network would be told."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


def open_store(
    path: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    durability: str | None = None,
) -> Embedded:
    """Open the store of a folder, and make one if the folder is empty or not there.

    What is None is as the folder has it; a new store has three partitions and waits for the disk ("fsync").
    Without a path it is a temporary one, which is gone when it is closed, and waits for nothing ("os").
    Raises `EmbeddedError`, and then has changed nothing.
    """
    try:
        if path is not None:
            return Embedded(*_claim(path, partitions, durability))
        with contextlib.ExitStack() as undo:
            folder_ = tempfile.mkdtemp(prefix="wbkv-")
            undo.callback(shutil.rmtree, folder_, ignore_errors=True)
            store = Embedded(*_claim(folder_, partitions, durability or "os"), temporary=True)
            undo.pop_all()
            return store
    except (ValueError, OSError) as error:  # a `ConfigError` is a ValueError
        raise EmbeddedError(_refusal(Error.INVALID_REQUEST, str(error))) from error
    except (ClusterError, StorageError) as error:
        raise EmbeddedError(_refusal(Error.UNAVAILABLE, str(error))) from error


def _claim(
    path: str | os.PathLike[str], partitions: int | None, durability: str | None
) -> tuple[Config, int]:
    """What the folder has, or now has, and the lock on it."""
    if not os.fspath(path):
        raise ConfigError("the path is empty")
    if partitions is not None and type(partitions) is not int:
        raise ConfigError(f"partitions must be a whole number, not {partitions!r}")
    data = Path(path).absolute()
    wanted = cast(Durability, durability or "fsync")  # `Config` checks it, before anything is made
    new = Config.local(1, PARTITIONS if partitions is None else partitions, 1, data, durability=wanted)
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
        (me,) = config.nodes
        if (data / UNFINISHED).exists() and not config.data(me).exists():
            (data / UNFINISHED).rename(config.data(me))
            sync_directory(data)
    except BaseException:
        _let_go(lock)
        raise
    return config, lock


def _make(config: Config) -> None:
    """A new store. If this is interrupted, what is there says how far it went: see `UNFINISHED`."""
    data = config.directory
    shutil.rmtree(data / UNFINISHED, ignore_errors=True)
    folder.check_empty(data)
    ((me, node),) = config.nodes.items()
    create_disk(replace(config, nodes={me: replace(node, data=UNFINISHED)}), me)
    dump_config(config, data / CONFIG)
    sync_directory(data.parent)


def _let_go(lock: int) -> None:
    """Even if a process that was forked from this one still has the file."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _refusal(kind: Error.Kind, why: str) -> Error:
    """An error that no repetition helps against."""
    return Error(kind=kind, message=why, code=_CODES[kind])


class Embedded:
    """An open store. Calls may come from any thread."""

    def __init__(self, config: Config, lock: int, *, temporary: bool = False) -> None:
        self._inside = _Inside(config, lock, temporary=temporary)
        self._crossing, self._methods = self._inside.opened()
        weakref.finalize(self, self._inside.close)

    def call(self, method: str, request: Message, timeout_s: float) -> Future[Message]:
        """Call a method of `wbkv.v1.KV` or `wbkv.v1.Cluster`. A future that fails has a `EmbeddedError`."""
        return self._crossing.call(self._method(method, Unary, request), request, timeout_s)

    def stream(self, method: str, request: Message, timeout_s: float | None) -> BridgedStream:
        """Begin a scan or a watch. The time is for all of it."""
        return self._crossing.stream(self._method(method, Streaming, request), request, timeout_s)

    def _method(self, name: str, sort: type[M], request: Message) -> M:
        method = self._methods.get(name)
        if not isinstance(method, sort):
            raise TypeError(f"{name!r} is no {sort.__name__.lower()} method")
        if not isinstance(request, method.kind):
            raise TypeError(f"{name} takes a {method.kind.__name__}, not a {type(request).__name__}")
        return method

    def close(self) -> None:
        """Let calls under way end, write everything down, and let others have the folder.

        Later calls fail. In a process that was forked from the one that has the store, nothing happens.
        """
        self._inside.close()


class _Inside:
    """The thread of an open store. It does not know the `Embedded`, which may be forgotten."""

    def __init__(self, config: Config, lock: int, *, temporary: bool) -> None:
        (self._me,) = config.nodes
        nodes = {self._me: replace(config.nodes[self._me], api=None)}  # nobody listens
        self._config = replace(config, nodes=nodes)
        self._lock = lock
        self._temporary = temporary
        self._process = os.getpid()
        self._opened: Future[tuple[LoopBridge, Methods]] = Future()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"wbkv {config.directory}", daemon=True)
        self._thread.start()

    def opened(self) -> tuple[LoopBridge, Methods]:
        """Wait until the store serves. Raises if it cannot."""
        try:
            return self._opened.result()
        except BaseException:  # somebody may just not want to wait
            self.close()
            raise

    def close(self) -> None:
        """End, and wait until everything is on the disk. In any thread, as often as you like."""
        with contextlib.suppress(Exception):  # it is closed, or could not be opened, or not by this process
            crossing, _ = self._opened.result()
            crossing.post(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        """The thread."""
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # whatever it is, somebody waits to be told
            if self._opened.done():
                logger.exception("the store in %s has ended", self._config.directory)
            else:
                self._opened.set_exception(error)
        finally:
            _let_go(self._lock)
            if self._temporary:
                shutil.rmtree(self._config.directory, ignore_errors=True)

    async def _main(self) -> None:
        elected = asyncio.Event()

        def turned() -> None:
            partitions = [] if elected.is_set() else facts.topology().partitions.values()
            if partitions and all(partition.leads and partition.caught_up for partition in partitions):
                elected.set()

        engine = Engine(self._config, self._me, lambda _: _Nobody(), on_turned=turned)
        try:
            assert engine.service is not None
            facts = engine.facts(engine.status)
            backing = ApiContext(engine.service, facts, Options(self._config.id, self._me))
            self._stop = engine.stopped.set
            self._topology = facts.topology
            crossing = LoopBridge(self._fail)
            engine.turn_soon()
            await _first(elected, engine.stopped)
            if engine.failure is not None:
                raise engine.failure
            self._opened.set_result((crossing, {**KV(backing).methods, **Cluster(backing).methods}))
            await engine.stopped.wait()
            self._failure = engine.failure
            crossing.close()
            for stream in crossing.streams:
                stream.cancel()
            if crossing.calls and engine.failure is None:
                await asyncio.wait(crossing.calls, timeout=GRACE_S)
            for call in crossing.calls:
                call.cancel()
            rest = crossing.calls | crossing.streams
            if rest:
                await asyncio.wait(rest)
            if engine.failure is None:
                engine.commit()
        finally:
            engine.rest()
            engine.close()  # the loop has nothing else to do any more

    def _fail(self, error: BaseException, kind: type[Message]) -> EmbeddedError:
        """What a caller is told."""
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
        return EmbeddedError(_refusal(Error.OUTCOME_UNKNOWN if cut_off else Error.UNAVAILABLE, why))


class _Nobody:
    """The network of a node that is all there is."""

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """There is no other node."""

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """There is no client that multicasts by itself."""


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
