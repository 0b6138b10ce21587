"""An unexpected error is logged once, and not shown to clients."""

from __future__ import annotations

import pytest
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error

from tests.unit.kvstore.api.harness import Served, fails, run


def test_an_internal_error_is_logged_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        served.service.failure = RuntimeError("the secret of the house")
        code, error = await fails(served.kv.Put(kv.PutRequest(key=b"k")))
        assert (code.name, error.kind) == ("INTERNAL", Error.INTERNAL)
        assert error.message == "internal error"
        assert not error.retryable

    run(test)
    ours = [each for each in caplog.records if each.name.startswith("kvstore")]  # gRPC may log, too
    (record,) = ours
    assert record.exc_info is not None
    assert "the secret of the house" in str(record.exc_info[1])
