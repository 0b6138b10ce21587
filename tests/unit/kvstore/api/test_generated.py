"""The generated code is that of the sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wbkv_proto.v1 import cluster_pb2, error_pb2, kv_pb2, session_pb2

from tests.tree import ROOT


def test_the_generated_code_is_that_of_the_sources(tmp_path: Path) -> None:
    source = ROOT / "proto"
    files = sorted(source.glob("wbkv_proto/v1/*.proto"))
    subprocess.run(  # noqa: S603 - our own interpreter and files
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{source}"),
            *(f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")),
            *map(str, files),
        ],
        check=True,
    )
    generated = sorted(tmp_path.glob("wbkv_proto/v1/*"))
    assert len(generated) == 3 * len(files)
    for file in generated:
        committed = source / "wbkv_proto/v1" / file.name
        assert committed.read_text() == file.read_text(), f"{file.name}: run `make proto`"


def test_every_enumeration_begins_with_unspecified() -> None:
    for module in (cluster_pb2, error_pb2, kv_pb2, session_pb2):
        file = module.DESCRIPTOR
        nested = [enum for message in file.message_types_by_name.values() for enum in message.enum_types]
        for enum in (*file.enum_types_by_name.values(), *nested):
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED"), enum.full_name
