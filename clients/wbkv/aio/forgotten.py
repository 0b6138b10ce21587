"""Errors that say so where `async` or `await` was forgotten. Type checkers find the same without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn


class AsyncWithOnly:
    """A resource for `async with`: a plain `with` raises an error that says so."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{self!r} needs `async with`, not `with`")

        def __exit__(self, *_: Any) -> None:
            """Make Python call `__enter__`, which raises."""


class AsyncForOnly:
    """An iterator for `async for`: a plain `for` raises an error that says so."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{self!r} needs `async for`, not `for`")
