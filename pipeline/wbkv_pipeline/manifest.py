"""An export's manifest: what is in it, and what each file must be. A folder that has one is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from wbkv_pipeline.errors import PipelineError

NAME: Final = "manifest.json"
DATA: Final = "data"
"""The folder beside it that has the files."""
FORMAT: Final = "wbkv export"
VERSION: Final = 1


@dataclass(frozen=True)
class ExportedFile:
    """One of an export's files."""

    name: str
    """In the folder of the data."""
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All of an export."""

    cluster: str
    revision: int
    time: str
    options: Mapping[str, str]
    schema: str
    """As Spark writes it, in a line."""
    files: tuple[ExportedFile, ...]

    @property
    def rows(self) -> int:
        """In all files."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """As it is kept."""
        content = {"format": FORMAT, "version": VERSION, "rows": self.rows, **asdict(self)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    def digest(self) -> str:
        """A name for exactly this export."""
        return hashlib.sha256(self.encode()).hexdigest()


def decode(content: bytes, where: str) -> Manifest:
    """Read a manifest. Raises `PipelineError` if it is none, or damaged."""
    try:
        found: Any = json.loads(content)
        kind = found["format"], found["version"]
        made = Manifest(
            cluster=str(found["cluster"]),
            revision=int(found["revision"]),
            time=str(found["time"]),
            options={str(name): str(value) for name, value in found["options"].items()},
            schema=str(found["schema"]),
            files=tuple(_file(each) for each in found["files"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{where} is not the manifest of an export, or damaged: {error!r}") from None
    if kind != (FORMAT, VERSION):
        raise PipelineError(
            f"{where} is of {kind[0]!r}, version {kind[1]}; this program reads version {VERSION}"
        )
    if made.rows != found.get("rows"):
        raise PipelineError(f"{where} is damaged: its files have {made.rows} rows, not {found.get('rows')}")
    return made


def _file(found: Any) -> ExportedFile:
    name = str(found["name"])
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"a file is called {name!r}")
    return ExportedFile(name, int(found["rows"]), int(found["bytes"]), str(found["sha256"]))
