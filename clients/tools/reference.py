"""Write the reference of the SDK into docs/reference, from signatures and docstrings.

`make reference` runs it; a test checks that it was run. In a page, everything between a comment such as
`<!-- reference: wbkv.connect wbkv.Client -->` and the next `<!-- end -->` is generated; the rest is written
by hand. With `signatures` instead of `reference`, docstrings are left out. Sources are parsed, not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

CLIENTS: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = CLIENTS.parent / "docs" / "reference"
PAGES: Final = ("sdk.md", "aio.md", "errors.md")
WIDTH: Final = 100
_BLOCK: Final = re.compile(r"<!-- (reference|signatures): ([^>]*) -->\n.*?<!-- end -->", re.DOTALL)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def page(text: str) -> str:
    """Return a page with its generated parts written anew."""

    def block(found: re.Match[str]) -> str:
        parts = [part for name in found[2].split() for part in _about(name, brief=found[1] == "signatures")]
        return "\n\n".join([f"<!-- {found[1]}: {found[2]} -->", *filter(None, parts), "<!-- end -->"])

    return _BLOCK.sub(block, text)


class Definition(NamedTuple):
    """A name, what defines it (a function may have overloads), and what is said of it."""

    name: str
    nodes: list[ast.stmt]
    text: str


def definitions(body: list[ast.stmt]) -> dict[str, Definition]:
    """Return what a module, a class or an `__init__` defines. A string behind an assignment describes it."""
    found: dict[str, Definition] = {}
    for node, behind in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name, text = node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = _code_of(target).removeprefix("self.")
            text = ""
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                text = " ".join(str(behind.value.value).split())
        else:
            continue
        found[name] = Definition(name, [*found[name].nodes, node] if name in found else [node], text)
    return found


class Source:
    """A module of the package, parsed."""

    def __init__(self, name: str) -> None:
        path = CLIENTS.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.text = ast.get_docstring(tree) or ""
        self.defined = definitions(tree.body)
        self.imported = {
            each.name: node.module or ""
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for each in node.names
        }

    def public(self) -> list[str]:
        """Return the names in `__all__`."""
        node = self.defined["__all__"].nodes[0]
        assert isinstance(node, ast.Assign)
        return [str(name) for name in ast.literal_eval(node.value)]


@cache
def _source(name: str) -> Source | None:
    try:
        return Source(name)
    except FileNotFoundError:
        return None


def _about(name: str, *, brief: bool) -> Iterator[str]:
    """Yield the paragraphs about a name, or about all that a module offers."""
    parent, _, own = name.rpartition(".")
    source = _source(parent)
    assert source is not None, name
    home = _source(source.imported.get(own, parent))
    if home is not None and own in home.defined:
        yield f"### `{name}`"
        yield from _paragraphs(home.defined[own], brief=brief)
        return
    module = _source(name)
    assert module is not None, name
    yield "" if brief else module.text
    for each in module.public():
        yield from _about(f"{name}.{each}", brief=brief)


def _paragraphs(found: Definition, *, brief: bool) -> Iterator[str]:
    first = found.nodes[0]
    if isinstance(first, ast.ClassDef):
        yield from _class(first, found.text, brief=brief)
    elif isinstance(first, _FUNCTIONS):
        # Of a function with overloads, these say more than what implements them.
        yield _block(map(_signature, found.nodes[:-1] or found.nodes))
        yield "" if brief else found.text
    else:
        yield _block([_code_of(first)])
        yield found.text


def _class(node: ast.ClassDef, text: str, *, brief: bool) -> Iterator[str]:
    members = definitions(node.body)
    made = members["__init__"].nodes[0] if "__init__" in members else None
    attributes = definitions(made.body) if isinstance(made, ast.FunctionDef) else {}
    fields = [_field(each) for each in attributes.values() if each.text and each.name[0] != "_"]
    functions: list[Definition] = []
    for each in members.values():
        if each.name[0] == "_":
            continue
        if isinstance(each.nodes[0], _FUNCTIONS) and not _is_property(each.nodes[0]):
            functions.append(each)
        else:
            fields.append(_field(each))
    if brief:
        yield _block(_signature(each.nodes[0]) for each in functions)
        return
    yield text
    yield "\n".join(fields)
    for each in functions:
        yield f"#### `{node.name}.{each.name}`"
        yield from _paragraphs(each, brief=False)


def _is_property(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list)


def _field(found: Definition) -> str:
    node = found.nodes[0]
    shown = _code_of(node).removeprefix("self.")
    if isinstance(node, ast.FunctionDef) and node.returns:
        shown = f"{found.name}: {_code_of(node.returns)}"
    return f"- `{shown}`{': ' if found.text else ''}{' '.join(found.text.split())}"


def _signature(node: ast.stmt) -> str:
    """A function's signature, on one line if that is short."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    result = f" -> {_code_of(node.returns)}" if node.returns else ""
    marks = [
        f"@{mark}\n" for mark in map(ast.unparse, node.decorator_list) if mark.endswith("contextmanager")
    ]
    head = "".join(marks) + ("async def " if isinstance(node, ast.AsyncFunctionDef) else "def ") + node.name
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    parameters = [_parameter(*each) for each in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        parameters.insert(len(given.posonlyargs), "/")
    if parameters[:1] in (["self"], ["cls"]):
        del parameters[0]
    if given.vararg:
        parameters.append("*" + _parameter(given.vararg, None))
    elif given.kwonlyargs:
        parameters.append("*")
    parameters += [_parameter(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    line = f"{head}({', '.join(parameters)}){result}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {each}," for each in parameters), f"){result}"])


def _parameter(node: ast.arg, default: ast.expr | None) -> str:
    name = f"{node.arg}: {_code_of(node.annotation)}" if node.annotation else node.arg
    return name if default is None else f"{name} = {_code_of(default)}"


def _code_of(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def _block(lines: Iterable[str]) -> str:
    return "\n".join(["```py", *lines, "```"])


if __name__ == "__main__":
    for name in PAGES:
        path = FOLDER / name
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
