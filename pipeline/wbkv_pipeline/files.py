"""Folders on any file system that Spark can reach (file:, hdfs:, s3a:, ...), through Hadoop's API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

RECURSIVE: Final = True
OVERWRITE: Final = True


def new_folder(spark: SparkSession, path: str) -> Folder:
    """Return a folder to write to. Raises `PipelineError` if it exists and is not empty."""
    folder = Folder(spark, path)
    if not folder.is_empty():
        raise PipelineError(f"{folder} is not empty: name a new folder, or an empty one")
    return folder


class Folder:
    """A folder, or a file, which need not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        from py4j.protocol import Py4JJavaError

        # PySpark has no public way to Hadoop's file systems.
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - see above
        try:
            self._path = self._jvm.org.apache.hadoop.fs.Path(path)
            self._system = self._path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001 - the same
            if self._system.getUri().getScheme() == "file" and not self._path.isAbsolute():
                # Java keeps the working directory of its start; this process may have changed its own.
                self._path = self._jvm.org.apache.hadoop.fs.Path(os.path.abspath(path))
            # Absolute, and with the scheme, as Spark writes paths.
            self._path = self._system.makeQualified(self._path)
        except Py4JJavaError as error:
            raise PipelineError(f"{path}: {error.java_exception.getMessage()}") from None
        self.uri = str(self._path.toString())

    def __str__(self) -> str:
        return self.uri

    def exists(self) -> bool:
        """Whether a file or folder of this name exists."""
        return bool(self._system.exists(self._path))

    def is_empty(self) -> bool:
        """Whether the folder is empty, or does not exist."""
        if not self.exists():
            return True
        return bool(self._system.isDirectory(self._path)) and not self._system.listStatus(self._path)

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the names and sizes of all files in the folder and below, except those that Spark ignores."""
        if not self.exists():
            return
        if self._system.isFile(self._path):
            yield "", self._system.getFileStatus(self._path).getLen()
            return
        found = self._system.listFiles(self._path, RECURSIVE)
        before = len(self._path.toUri().getPath().rstrip("/")) + 1
        while found.hasNext():
            status = found.next()
            name = str(status.getPath().toUri().getPath())[before:]
            if not any(part.startswith(("_", ".")) for part in name.split("/")):
                yield name, status.getLen()

    def child(self, name: str) -> str:
        """Return the URI of a file or folder in this one."""
        return f"{self.uri.rstrip('/')}/{name}" if name else self.uri

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        path = self._jvm.org.apache.hadoop.fs.Path(self.child(name))
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Write a small new file, atomically."""
        path = self._jvm.org.apache.hadoop.fs.Path
        temporary = path(self.child(f".{name}.{uuid4().hex}"))
        stream = self._system.create(temporary, not OVERWRITE)
        try:
            stream.write(content)
        finally:
            stream.close()
        if not self._system.rename(temporary, path(self.child(name))):
            raise PipelineError(f"{self.child(name)} cannot be written")

    def temporary(self, spark: SparkSession) -> Folder:
        """Return a folder with a new name beside this one, on the same file system."""
        return Folder(spark, self._beside(f".{self._path.getName()}.{uuid4().hex[:8]}"))

    def _beside(self, name: str) -> str:
        parent = self._path.getParent()
        if parent is None:
            raise PipelineError(f"{self} is the root of a file system: name a folder in it")
        return f"{str(parent.toString()).rstrip('/')}/{name}"

    def become(self, target: Folder) -> None:
        """Rename this folder to another, which is empty or does not exist."""
        if target.exists():
            self._system.delete(target._path, not RECURSIVE)
        if not self._system.rename(self._path, target._path):
            raise PipelineError(f"{self} cannot be renamed to {target}")

    def remove(self) -> None:
        """Remove the folder and everything in it, if it exists."""
        self._system.delete(self._path, RECURSIVE)
