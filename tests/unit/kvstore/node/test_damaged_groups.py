"""Damaged states that a node finds outside of messages: the group steps aside, others go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.node.loop import Node
from kvstore.storage.errors import DamagedRow
from multicast.types import GroupId, ReplicaId, Timestamp

BAD, GOOD = GroupId(1), GroupId(2)


class Application:
    """The state of one group cannot be read."""

    def __init__(self) -> None:
        self.commits: list[dict[GroupId, Timestamp]] = []

    def unsaved(self, group: GroupId) -> bool:
        if group == BAD:
            raise DamagedRow("the row is bad")
        return True

    def executed(self, group: GroupId) -> Timestamp:
        return Timestamp(9 * self.unsaved(group))

    def commit(self, positions: dict[GroupId, Timestamp], after: int) -> None:
        self.commits.append(positions)


@pytest.mark.parametrize("restoring", [False, True])
def test_a_group_that_cannot_be_committed_steps_aside_alone(
    restoring: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node: Any = Node.__new__(Node)
    node._application, node._recorder, node._records = Application(), None, {}
    node._written, node._committing = 0, False
    node._hosted = {
        ReplicaId(group, 0, 7): SimpleNamespace(
            replica=SimpleNamespace(is_restoring=restoring, reported=Timestamp(5)),
            applied=False,
            position=Timestamp(9),
        )
        for group in (BAD, GOOD)
    }
    aside = []

    def set_aside(self: Any, group: GroupId, error: DamagedRow) -> None:
        aside.append(group)
        del self._hosted[ReplicaId(group, 0, 7)]

    monkeypatch.setattr(Node, "set_aside", set_aside)
    node.commit()
    assert aside == [BAD]
    assert node._application.commits == [{GOOD: Timestamp(9)}]
