"""The `wbkv` command as an install without any extra has it."""

from __future__ import annotations

import subprocess
import sys

HIDDEN = (
    "kvstore multicast hpack lmdb msgspec uvloop sortedcontainers grpc_health grpc_reflection rich shtab"
    " pyspark"
)

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""
"""Makes these top-level packages look as if they were not installed."""

CLIENT_ONLY = HIDE.format(HIDDEN.split()) + "from wbkv.cli.main import main\nsys.exit(main())"


def client_only(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLIENT_ONLY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
