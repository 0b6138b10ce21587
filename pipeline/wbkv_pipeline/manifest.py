"""The manifest of an export: its files, with sizes and checksums. A folder with a manifest is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from wbkv_pipeline.errors import PipelineError

NAME: Final = "manifest.json"
DATA: Final = "data"
"""The folder of the files, beside the manifest."""
FORMAT: Final = "wbkv export"
VERSION: Final = 1


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export."""

    name: str
    """Relative to the folder of the data."""
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of an export."""

    cluster: str
    revision: int
    time: str
    options: Mapping[str, str]
    schema: str
    """In one line, as Spark writes it."""
    files: tuple[ExportedFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """Return the content of the manifest's file."""
        content = {"format": FORMAT, "version": VERSION, "rows": self.rows, **asdict(self)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    def digest(self) -> str:
        """Return a hash that identifies this export."""
        return hashlib.sha256(self.encode()).hexdigest()


def decode(content: bytes, where: str) -> Manifest:
    """Parse a manifest. Raises `PipelineError` if the content is not a manifest, or is damaged."""
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
        raise ValueError(f"the file name {name!r} leaves the folder")
    return ExportedFile(name, int(found["rows"]), int(found["bytes"]), str(found["sha256"]))
