"""Fencing tokens rise on a real store, also when a lock is taken from a holder that is gone."""

from __future__ import annotations

import wbkv


def test_a_token_outlives_no_other_holder() -> None:
    with wbkv.open(partitions=2) as client:
        tokens = []
        for name in ("a", "b", "c"):
            with client.lock("lock") as held:
                tokens.append(held.token)
                assert client.txn().when(held.holds()).then(wbkv.put(name, b"")).commit().succeeded
        gone = client.lock("lock", ttl=0.1)
        assert gone.acquire()
        gone._stop_renewing()  # as if its process had stopped
        was_held = gone.holds()
        with client.lock("lock", ttl=5.0) as held:
            entry = client.entry("lock")
            assert entry is not None
            # Removed and created in one transaction, the key is a new one.
            assert (entry.create_revision, entry.version) == (held.token, 1)
            tokens += [gone.token, held.token]
            assert not client.txn().when(was_held).then(wbkv.put("late", b"")).commit().succeeded
            assert client.txn().when(held.holds()).then(wbkv.put("d", b"")).commit().succeeded
        assert tokens == sorted(set(tokens))
        assert client.get("late") is None
