"""List-append: a read shows all writes before it, in their order.

The longest read of a key is the order of its versions; every other read must be a prefix of it. Appends that
no transaction read come after all of it: had they come earlier, the longest read would show them.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

from wbkv.checker.dependencies import RW, WR, WW, Dependencies, Predecessor, Successor
from wbkv.checker.history import (
    FAIL,
    NOTHING,
    ODD,
    OK,
    READ,
    UNKNOWN,
    WRITE,
    HistoryColumns,
    HistoryError,
    Operation,
    Scalar,
    called,
    show,
)
from wbkv.checker.model import Model
from wbkv.checker.updates import Updates


class Lists(Model):
    """The reads of each list, and the dependencies that follow from them."""

    name = "list-append"
    write = "append"
    written = "an element"

    def __init__(self, history: HistoryColumns) -> None:
        super().__init__(history)
        self._orders: list[list[Scalar]] = []
        """By key: the longest read."""
        self._positions: list[dict[Scalar, int]] = []
        self._seen_by: list[array[int]] = []
        """By key and position: the transaction that read the element first."""
        self._broken: set[int] = set()
        """Keys whose reads contradict each other: nothing follows from them."""
        self._several: dict[int, list[int]] = {}
        """By key: transactions with more than one append to it."""

    def shown(self, key: int, value: int) -> object:
        """Return the result of a read."""
        return self._orders[key][:value]

    def observe(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction with its results."""
        history = self._history
        known: dict[int, list[Scalar] | None] = {}
        own: dict[int, list[Scalar]] = {}
        outside: dict[int, int] = {}
        last: dict[int, int] = {}
        for function, name, value in operations:
            key = self._key(name)
            if function == "append":
                element = self._scalar(value)
                if element in own.setdefault(key, []):
                    raise HistoryError(f"{show(element)} is appended to key {show(name)} twice")
                own[key].append(element)
                self._add_write(transaction, key, element, last)
                continue
            seen = _sequence(value)
            mine = own.get(key, [])
            before = known.get(key)
            if before is None and mine and seen[-len(mine) :] == mine:
                before = seen[: -len(mine)]
            if (before is not None or mine) and (before is None or before + mine != seen):
                must = f"be {show(before + mine)}" if before is not None else f"end with {show(mine)}"
                text = f"read {show(seen)} from {show(name)}, which must {must} by its own operations"
                history.find("internal", f"{called(transaction)} {text}", transaction)
                history.odd[history.add_operation(READ, key, ODD)] = seen
                continue
            length = self._place(transaction, key, seen)
            position = history.add_operation(READ, key, length)
            if length == ODD:
                history.odd[position] = seen
            elif key not in known:
                outside[key] = length - len(mine)
            known[key] = seen[: len(seen) - len(mine)]
        self._end(transaction, last, outside)

    def _end(self, transaction: int, last: dict[int, int], outside: dict[int, int]) -> None:
        super()._end(transaction, last, outside)
        history = self._history
        if len(last) < sum(
            history.op_kind[position] == WRITE for position in history.operations(transaction)
        ):
            for key in last:
                if len(history.writes(transaction, key)) > 1:
                    self._several.setdefault(key, []).append(transaction)

    def _add_key(self) -> None:
        super()._add_key()
        self._orders.append([])
        self._positions.append({})
        self._seen_by.append(array("q"))

    def _place(self, transaction: int, key: int, seen: list[Scalar]) -> int:
        """Return the length of a read that fits the order of its key, which it may extend."""
        order = self._orders[key]
        length = len(seen)
        if length <= len(order):
            if seen == (order if length == len(order) else order[:length]):
                return length
        elif order == seen[: len(order)]:
            news = [self._scalar(element) for element in seen[len(order) :]]
            positions = self._positions[key]
            if len(set(news)) == len(news) and positions.keys().isdisjoint(news):
                positions.update(zip(news, range(len(order), length), strict=True))
                order.extend(news)
                self._seen_by[key].extend([transaction] * len(news))
                return length
        self._reject(transaction, key, [self._scalar(element) for element in seen])
        return ODD

    def _reject(self, transaction: int, key: int, seen: list[Scalar]) -> None:
        history = self._history
        name, me = show(history.keys[key]), called(transaction)
        twice = next((element for position, element in enumerate(seen) if element in seen[:position]), None)
        if twice is not None:
            text = f"{me} read {show(seen)} from {name}, which has {show(twice)} more than once"
            history.find("duplicate-elements", text, transaction)
            return
        order = self._orders[key]
        position = next(position for position, element in enumerate(seen) if order[position] != element)
        other = self._seen_by[key][position]
        self._broken.add(key)
        text = (
            f"{me} read {show(seen)} from {name}, but {called(other)} read {show(order)}: "
            f"at position {position + 1} stands {show(seen[position])} or {show(order[position])}"
        )
        history.find("incompatible-order", text, transaction, other)

    def infer(self, dependencies: Dependencies) -> bytearray:
        """Infer all dependencies. Return which transactions were executed."""
        history = self._history
        happened = bytearray(status == OK for status in history.status)
        versions = [self._versions(key, happened) for key in range(len(self._orders))]
        for key, transactions in self._several.items():
            for transaction in transactions:
                if happened[transaction]:
                    self._check_own_order(transaction, key)
        for key, chain in enumerate(versions):
            if key not in self._broken:
                self._infer_key(key, chain, happened, dependencies)
        return happened

    def _versions(self, key: int, happened: bytearray) -> list[int]:
        """By position: the value's number, or NOTHING where its writer did not write it."""
        history = self._history
        numbers = history.numbers[key]
        chain: list[int] = []
        for position, element in enumerate(self._orders[key]):
            number = history.value_number(key, element) if element not in numbers else numbers[element]
            writer = history.writer[number]
            reader = self._seen_by[key][position]
            if writer != NOTHING and history.status[writer] != FAIL:
                if history.status[writer] == UNKNOWN:
                    happened[writer] = 1
                chain.append(number)
                continue
            chain.append(NOTHING)
            text = f"{called(reader)} read {show(element)} from {show(history.keys[key])}, which "
            if writer == NOTHING:
                history.find("unwritten", f"{text}nobody appended", reader)
            else:
                text = f"{text}{called(writer)} appended, but {called(writer)} failed"
                history.find("G1a", text, reader, writer)
        return chain

    def _check_own_order(self, transaction: int, key: int) -> None:
        """Check that a transaction's appends are read in its own order, without gaps."""
        history = self._history
        highest, missing = -1, None
        for number in history.writes(transaction, key):
            element = history.values[number]
            position = self._positions[key].get(element)
            if position is not None and (missing is not None or position < highest):
                self._broken.add(key)
                reader = self._seen_by[key][position]
                own = show([history.values[number] for number in history.writes(transaction, key)])
                text = (
                    f"{called(transaction)} appended {own} to {show(history.keys[key])} in this order, "
                    f"but {called(reader)} read {show(self._orders[key])}"
                )
                history.find("incompatible-order", text, transaction, reader)
                return
            if position is None:
                missing = element
            else:
                highest = position

    def _infer_key(self, key: int, positions: list[int], happened: bytearray, to: Dependencies) -> None:
        history = self._history
        writer = history.writer
        chain = [number for number in positions if number != NOTHING]
        before = [0]
        """By length of a read: how many of the chain's versions it has seen."""
        for number in positions:
            before.append(before[-1] + (number != NOTHING))
        updates = Updates()
        reads: list[tuple[int, int]] = []
        for transaction, length, appends in zip(*self._reads[key], strict=True):
            if self._is_spoiled(transaction, key, length, positions, appends):
                continue
            version = before[length]
            reads.append((transaction, version))
            if appends:
                updates.add(chain[version - 1] if version else NOTHING, transaction)
        unread: dict[int, list[int]] = {}
        positions_of = self._positions[key]
        if len(history.numbers[key]) > len(positions_of):
            for element, number in history.numbers[key].items():
                if element not in positions_of and writer[number] != NOTHING and happened[writer[number]]:
                    unread.setdefault(writer[number], []).append(number)
        self._extend(chain, unread, updates)
        for earlier, later in pairwise(chain):
            to.add(WW, writer[earlier], writer[later], key, earlier, later)
        predecessors = [Predecessor(WW, writer[chain[-1]], chain[-1])] if chain else []
        for transaction, version in reads:
            seen = chain[version - 1] if version else NOTHING
            if version:
                to.add(WR, writer[seen], transaction, key, seen, NOTHING)
            if version < len(chain):
                to.add(RW, transaction, writer[chain[version]], key, seen, chain[version])
            else:
                predecessors.append(Predecessor(RW, transaction, seen))
        successors = [Successor(transaction, numbers[0]) for transaction, numbers in unread.items()]
        to.join(predecessors, successors, key)
        updates.report(history, key)

    def _extend(self, chain: list[int], unread: dict[int, list[int]], updates: Updates) -> None:
        """Extend the longest read by appends that are known to follow at once, although unread."""
        if chain:
            chain += unread.pop(self._history.writer[chain[-1]], [])
        for transaction in updates.of(chain[-1] if chain else NOTHING):
            if transaction in unread:
                chain += unread.pop(transaction)
                return

    def _is_spoiled(
        self, transaction: int, key: int, length: int, positions: list[int], appends: int
    ) -> bool:
        """Return whether a read is impossible in any serial execution. It is reported at once."""
        history = self._history
        name, me = show(history.keys[key]), called(transaction)
        if appends:
            for number in history.writes(transaction, key):
                if self._positions[key].get(history.values[number], length) < length:
                    element = show(history.values[number])
                    text = f"{me} read {element} from {name} before it appended that itself"
                    history.find("internal", text, transaction)
                    return True
        number = positions[length - 1] if length else NOTHING
        if number == NOTHING or history.final[number]:
            return False
        writer = history.writer[number]
        text = (
            f"{me} read {name} up to {show(history.values[number])}, which was not the last "
            f"that {called(writer)} appended to it"
        )
        history.find("G1b", text, transaction, writer)
        return True


def _sequence(value: object) -> list[Scalar]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise HistoryError(f"the result of a read must be a list, not {value!r}")
    return value
