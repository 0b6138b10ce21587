from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import wbkv
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source import sending
from wbkv_pipeline.source.sending import ATTEMPTS, send
from wbkv_pipeline.source.transactions import Task, WriteTransaction

TASK = Task(("batch", "job"), 0, 1000)


class Lazy(Future[Any]):
    """A call that is executed when its result is awaited: as late as possible."""

    def __init__(self, carry_out: Callable[[], None]) -> None:
        super().__init__()
        self._carry_out: Callable[[], None] | None = carry_out

    def result(self, timeout: float | None = None) -> Any:
        if self._carry_out is not None:
            carry_out, self._carry_out = self._carry_out, None
            carry_out()
        return super().result(0)


class Pipe:
    """A batch that raises the given failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked: list[tuple[list[bytes], wbkv.RequestId]] = []
        self.under_way: list[list[bytes]] = []
        self.most = 0

    def transact(self, *then: wbkv.Operation, id: wbkv.RequestId) -> Future[Any]:  # noqa: A002 - its name
        keys = [operation.key for operation in then]
        self.asked.append((keys, id))
        self.under_way.append(keys)
        self.most = max(self.most, len(self.under_way))

        def carry_out() -> None:
            self.under_way.remove(keys)
            if self.failures:
                future.set_exception(self.failures.pop(0))
            else:
                future.set_result(None)

        future = Lazy(carry_out)
        return future


def transactions(*keys: str, size: int = 1) -> list[WriteTransaction]:
    return [
        WriteTransaction(number, None, [wbkv.put(key, b"") for key in each], size)
        for number, each in enumerate(keys)
    ]


def test_many_are_under_way_at_once() -> None:
    pipe = Pipe()
    assert send(transactions(*"abcdefgh"), TASK, pipe, 3, ordered=False) == 8
    assert [keys for keys, _ in pipe.asked] == [[key.encode()] for key in "abcdefgh"]
    assert (pipe.most, pipe.under_way) == (3, [])


def test_bytes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BYTES", 10)
    pipe = Pipe()
    send(transactions(*"abcdef", size=4), TASK, pipe, 100, ordered=False)
    assert pipe.most == 2
    pipe = Pipe()
    send(transactions(*"abcdef", size=40), TASK, pipe, 100, ordered=False)
    assert pipe.most == 1


def test_those_that_share_a_key_keep_their_order() -> None:
    class Watching(Pipe):
        def transact(self, *then: wbkv.Operation, id: wbkv.RequestId) -> Future[Any]:  # noqa: A002 - its name
            busy = {key for keys in self.under_way for key in keys}
            assert not busy & {operation.key for operation in then}
            return super().transact(*then, id=id)

    pipe = Watching()
    send(transactions("ab", "cd", "ae", "f", "ef", "g"), TASK, pipe, 100, ordered=True)
    assert len(pipe.asked) == 6
    assert pipe.most > 1  # the others do not wait for each other


@pytest.mark.parametrize(
    "error", [wbkv.Unavailable("x"), wbkv.OutcomeUnknown("x"), wbkv.DeadlineExceeded("x")]
)
def test_without_an_outcome_it_is_asked_again_under_the_same_id(error: wbkv.Error) -> None:
    pipe = Pipe(*[error] * (ATTEMPTS - 1))
    assert send(transactions("a", "b"), TASK, pipe, 1, ordered=False) == 2
    ids = [found for keys, found in pipe.asked if keys == [b"a"]]
    assert len(ids) == ATTEMPTS
    assert len(set(ids)) == 1


def test_in_the_end_it_is_sparks_turn() -> None:
    with pytest.raises(wbkv.Unavailable):
        send(transactions("a"), TASK, Pipe(*[wbkv.Unavailable("x")] * ATTEMPTS), 1, ordered=False)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (wbkv.RequestMismatch("x"), "the transaction 0 differs from an earlier attempt"),
        (wbkv.RequestExpired("x"), "the transaction 0 came too late: its job began about a day ago"),
    ],
)
def test_what_cannot_be_repeated_is_explained(error: wbkv.Error, line: str) -> None:
    pipe = Pipe(error)
    with pytest.raises(PipelineError, match=line):
        send(transactions("a"), TASK, pipe, 1, ordered=False)
    assert len(pipe.asked) == 1
