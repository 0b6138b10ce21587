"""A client of a model store, whose clock only moves when a caller waits."""

from __future__ import annotations

import pytest
import wbkv
from wbkv import aio
from wbkv.core.requests import Requests
from wbkv.links import threads

from tests.unit.wbkv.model import Clock, ModelLink, ModelTasks, connected


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(threads, "time", found)
    return found


@pytest.fixture
def link(clock: Clock) -> ModelLink:
    return ModelLink(clock)


@pytest.fixture
def requests(link: ModelLink) -> Requests[bytes]:
    """What a client that has just connected can ask for."""
    return Requests(connected(link), wbkv.codecs.BYTES, "strict")


@pytest.fixture
def client(link: ModelLink, requests: Requests[bytes]) -> wbkv.Client[bytes]:
    return wbkv.Client(link, requests)


@pytest.fixture
def aclient(link: ModelLink, requests: Requests[bytes]) -> aio.Client[bytes]:
    return aio.Client(ModelTasks(link), requests)
