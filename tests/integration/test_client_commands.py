"""The client's commands against a real cluster, and the examples that the help and docs/cli.md give."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from wbkv.cli import main as command
from wbkv.cli.txn import EXAMPLES

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster, free_ports
from tests.integration.interrupts import IGNORING_SIGINT
from tests.tree import ROOT
from tests.unit.wbkv.cli.client_only import client_only

WAIT_S = 60
PROGRAM = str(Path(sys.executable).with_name("wbkv"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "data", 3, 3) as running:
        yield running


class Shell:
    """Runs `wbkv` against a cluster: in this process, which is quicker, or as a process of its own."""

    def __init__(
        self, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WBKV_ENDPOINTS", address)
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = command.main(words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def out(self, *words: str) -> str:
        """What it prints when it does what it should."""
        code, out, err = self(*words)
        assert (code, err) == (0, ""), err
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.out(*words, "--json"))

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.out(*words, "--json").splitlines()]

    def process(self, *words: str | bytes, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # noqa: S603 - our own command
            [PROGRAM, *words], input=given, capture_output=True, timeout=WAIT_S, check=False
        )


@pytest.fixture
def shell(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    address = cluster.config.nodes[NodeId("n2")].api
    assert address is not None
    return Shell(address, capsys, monkeypatch)


def test_put_get_and_del(shell: Shell) -> None:
    revision = shell.json("put", "pgd/a", "one")["revision"]
    assert shell.out("get", "pgd/a") == "one\n"
    assert shell.json("get", "pgd/a") == {
        "key": "pgd/a", "value": "one", "create_revision": revision, "mod_revision": revision, "version": 1,
    }  # fmt: skip
    assert re.fullmatch(r"revision \d+\n", shell.out("put", "pgd/a", "two"))
    assert shell.out("get", "pgd/a", "--revision", str(revision)) == "one\n"
    assert shell.out("get", "pgd/a", "--stale") in ("one\n", "two\n")
    head, row = shell.out("get", "pgd/a", "--long").splitlines()
    assert head.split() == ["KEY", "VALUE", "VERSION", "CREATED", "MODIFIED"]
    assert row.split()[:4] == ["pgd/a", "two", "2", str(revision)]
    assert shell.out("del", "pgd/a") == "1 deleted\n"
    assert shell.json("del", "pgd/a") == {"deleted": 0}


def test_a_key_that_is_absent(shell: Shell) -> None:
    assert shell("get", "nobody") == (1, "", "wbkv get: there is no key nobody\n")
    assert shell("get", "nobody", "--json") == (1, '{"key": "nobody", "value": null}\n', "")


def test_any_bytes(shell: Shell, tmp_path: Path) -> None:
    value = bytes(range(256))
    done = shell.process("put", "bytes/a", "-", given=value)
    assert done.returncode == 0, done.stderr
    assert shell.process("get", "bytes/a", "--raw").stdout == value
    assert shell.json("get", "bytes/a")["value"] == {"base64": base64.b64encode(value).decode()}
    assert shell.out("get", "bytes/a").startswith(r"\x00\x01")
    file = tmp_path / "value"
    file.write_bytes(b"text\non two lines\n")
    shell.out("put", r"bytes/\x00", "--escaped", "--file", str(file))
    assert shell.out("get", "--escaped", r"bytes/\x00") == "text\non two lines\n\n"
    assert shell.out("scan", "--escaped", r"bytes/\x00").splitlines()[1].split() == [
        r"bytes/\x00",
        *("text\\non", "two", "lines\\n"),
    ]
    shell.out("put", "bytes/b", "--escaped", r"\xff\n")
    assert shell.process("get", "bytes/b", "--raw").stdout == b"\xff\n"
    done = shell.process("put", b"bytes/\xfe", "raw")
    assert done.returncode == 0, done.stderr
    assert shell.out("get", r"bytes/\xfe", "--escaped") == "raw\n"


def test_scan(shell: Shell) -> None:
    for number in range(5):
        shell.out("put", f"scan/{number}", f"v{number}")
    assert shell.out("scan", "scan/") == "KEY     VALUE\n" + "".join(f"scan/{n}  v{n}\n" for n in range(5))
    assert shell.out("scan", "scan/", "--keys").split() == [f"scan/{n}" for n in range(5)]
    assert shell.out("scan", "scan/", "--count") == "5\n"
    assert shell.json("scan", "scan/", "--count") == {"count": 5}
    assert [row["value"] for row in shell.lines("scan", "scan/", "--limit", "2", "--reverse")] == ["v4", "v3"]
    assert shell.lines("scan", "--from", "scan/1", "--to", "scan/3", "--keys") == ["scan/1", "scan/2"]
    assert shell.lines("scan", "scan/", "--after", "scan/3", "--keys") == ["scan/4"]
    assert shell.lines("scan", "scan/", "--after", "scan/3", "--reverse", "--limit", "1", "--keys") == [
        "scan/2"
    ]
    assert shell.lines("scan", "--prefix", "scan/", "--keys") == [f"scan/{n}" for n in range(5)]
    assert shell.out("scan", "scan/", "-l").splitlines()[0].split()[-1] == "MODIFIED"
    assert shell.out("del", "--from", "scan/1", "--to", "scan/3") == "2 deleted\n"
    assert shell.out("del", "--prefix", "scan/") == "3 deleted\n"
    assert shell.out("scan", "scan/", "--json") == ""


class Terminal(io.StringIO):
    """What a user types."""

    def isatty(self) -> bool:
        return True


def test_removing_everything_is_confirmed(
    shell: Shell, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.out("put", "all/a", "1")
    for typed in ("", "\n", "y\n", "no\n"):
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        code, out, err = shell("del", "--all")
        assert (code, out) == (2, "")
        asked = f"This removes every key of the cluster {cluster.config.id}. Type yes to go on: "
        assert err == f"{asked}wbkv del: not confirmed. Nothing was deleted\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert shell("del", "--all")[0] == 2
    assert shell.out("scan", "--all", "--keys").splitlines().count("all/a") == 1
    keys = int(shell.out("scan", "--all", "--count"))
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    code, out, _ = shell("del", "--all")
    assert (code, out) == (0, f"{keys} deleted\n")
    shell.out("put", "all/a", "1")
    assert shell.out("del", "--all", "--yes") == "1 deleted\n"
    assert shell.out("scan", "--all", "--count") == "0\n"


def test_txn(shell: Shell, tmp_path: Path) -> None:
    assert shell("txn", "put txn/alice 100; put txn/bob 100")[0] == 0
    pay = "add txn/alice -30; add txn/bob 30; scan prefix(txn/) limit 1; get txn/no"
    code, out, err = shell("txn", f"when exists(txn/alice) then {pay}")
    assert (code, err) == (0, "")
    assert [line.split("  ")[-1].strip() for line in out.splitlines()[1:-1]] == [
        *("70", "130", "txn/alice = 70", "1 keys, and more", "-")
    ]
    assert re.fullmatch(r"revision \d+", out.splitlines()[-1])
    unmet = ("value(txn/alice) == 100", "version(txn/bob) > 5")
    code, out, err = shell("txn", f"when {' and '.join(unmet)} otherwise get txn/bob")
    assert (code, err) == (1, f"wbkv txn: does not hold: {', '.join(unmet)}\n")
    assert out.splitlines()[1].split() == ["get", "txn/bob", "130"]
    file = tmp_path / "script.txn"
    file.write_text("# all of it\ndel prefix(txn/)\nput txn/x 'a b'\nget txn/x\n")
    said = shell.json("txn", "--file", str(file))
    assert (said["succeeded"], said["unmet"], said["results"][:2]) == (True, [], [2, None])
    assert said["results"][2]["value"] == "a b"
    assert said["results"][2]["mod_revision"] == said["revision"]
    then, otherwise = ["get", "txn/x"], ["append", "txn/x", "!"]
    script = {"when": [["exists", "txn/y"]], "then": [then], "otherwise": [otherwise]}
    done = shell.process("txn", "--from-json", "--json", given=json.dumps(script).encode())
    assert done.returncode == 1
    assert json.loads(done.stdout) | {"revision": 0} == {
        "succeeded": False, "revision": 0, "unmet": [0], "results": [4],
    }  # fmt: skip


def test_an_operation_that_cannot_be_performed(shell: Shell) -> None:
    shell.out("put", "failed/a", "no number")
    code, out, err = shell("txn", "put failed/b 1; add failed/a 1")
    assert (code, out) == (1, "")
    assert err == "wbkv txn: operation 1 of then, add(b'failed/a', 1): not a number. Nothing was written\n"
    assert shell("get", "failed/b")[0] == 1
    code, out, _ = shell("txn", "--allow-failures", "put failed/b 1; add failed/a 1")
    assert code == 1
    assert out.splitlines()[2].endswith("FAILED: not a number")
    code, out, _ = shell("txn", "--allow-failures", "--json", "add failed/a 1")
    assert (code, json.loads(out)["results"]) == (1, [{"failed": "not a number"}])
    assert shell.out("get", "failed/b") == "1\n"


def test_conditions_on_numbers(shell: Shell) -> None:
    shell.out("put", "stock/a", "5")
    take = "when any(number(stock/a) >= 3, exists(stock/b)) then add stock/a -3 floor 0; swap stock/last me"
    assert [shell("txn", take)[0], shell("txn", take)[0]] == [0, 1]
    assert shell.out("get", "stock/a") == "2\n"


def test_the_examples_of_txn(shell: Shell) -> None:
    examples = [shlex.split(line)[1:] for line in re.findall(r"^    (wbkv txn .*)$", EXAMPLES, re.MULTILINE)]
    assert len(examples) == 4
    for words in (
        ["put", "alice", "100"],
        ["put", "bob", "0"],
        ["put", "user/1", "x"],
        ["put", "stock", "5"],
    ):
        shell.out(*words)
    pay, take, lock, read = examples
    assert [shell(*take)[0], shell(*take)[0]] == [0, 1]
    assert shell.out("get", "stock") == "2\n"
    assert shell(*pay)[0] == 0
    assert (shell.out("get", "alice"), shell.out("get", "bob")) == ("70\n", "30\n")
    assert [shell(*lock)[0], shell(*lock)[0]] == [0, 1]
    code, out, _ = shell(*read)
    assert code == 0
    assert [entry["key"] for entry in json.loads(out)["results"][1]["entries"]] == ["user/1"]
    shell.out("del", "bob")
    assert shell(*pay)[0] == 1


def watching(shell: Shell, *words: str, by: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A watch that has begun."""
    child = subprocess.Popen(  # noqa: S603 - our own command
        [*by, PROGRAM, "watch", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    assert re.fullmatch(r"watching after revision \d+\n", child.stderr.readline())
    return child


def test_watch(shell: Shell) -> None:
    with watching(shell, "watch/", "--limit", "2") as child:
        try:
            shell.out("put", "other", "unseen")
            first = shell.json("txn", r"put watch/a 1; put watch/b 'x\n'")["revision"]
            second = shell.json("txn", "del watch/a")["revision"]
            out, err = child.communicate(timeout=WAIT_S)
        finally:
            child.kill()
    assert (child.returncode, err) == (0, "")
    assert out == (f"{first}  put  watch/a  1\n{first}  put  watch/b  x\\n\n{second}  del  watch/a\n")
    code, out, _ = shell("watch", "watch/", "--after", str(first - 1), "--limit", "2", "--json")
    assert code == 0
    changes = [json.loads(line) for line in out.splitlines()]
    assert [change["revision"] for change in changes] == [first, second]
    assert changes[0]["events"][0] == {"key": "watch/a", "value": "1", "create_revision": first, "version": 1}
    assert changes[1]["events"][0]["value"] is None
    bounds = ("--from", "watch/a", "--to", "watch/b")
    code, out, _ = shell("watch", *bounds, "--after", str(first - 1), "--limit", "1")
    assert (code, out) == (0, f"{first}  put  watch/a  1\n")


@pytest.mark.parametrize("by", [(), IGNORING_SIGINT], ids=["foreground", "background of a script"])
def test_ctrl_c_ends_a_watch_quietly(shell: Shell, by: Sequence[str]) -> None:
    with watching(shell, by=by) as child:
        try:
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=WAIT_S) == ("", "")
        finally:
            child.kill()
    assert child.returncode == 130


def test_a_reader_that_has_seen_enough(shell: Shell) -> None:
    shell.out("txn", "; ".join(f"put pipe/{number} {'x' * 100}" for number in range(500)))
    script = f"{shlex.quote(PROGRAM)} scan pipe/ --json; echo $? >&2"
    with subprocess.Popen(  # noqa: S603 - our own command
        ["/bin/bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == "0\n"


def test_snapshots_and_compaction(shell: Shell) -> None:
    shell.out("put", "old/a", "before")
    snapshot = shell.json("snapshot", "--ttl", "600")
    assert snapshot["ttl"] == 600
    revision = str(snapshot["revision"])
    newer = shell.json("put", "old/a", "after")["revision"]
    assert shell.out("get", "old/a", "--revision", revision) == "before\n"
    assert "before" in shell.out("scan", "old/", "--revision", revision)
    code, out, err = shell("compact", str(newer))
    assert (code, out) == (1, "")
    assert err.startswith("wbkv compact: ")
    assert re.fullmatch(r"revision \d+\n", shell.out("snapshot"))


def test_what_is_compacted_has_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(tmp_path / "cluster", 1, 1) as small:
        address = small.config.nodes[NodeId("n1")].api
        assert address is not None
        shell = Shell(address, capsys, monkeypatch)
        old = shell.json("put", "a", "1")["revision"]
        new = shell.json("put", "a", "2")["revision"]
        said = shell.out("compact", str(new))
        assert said == f"revisions below {new} are no longer readable\n"
        assert shell.json("compact", str(new)) == {"revision": new}
        assert shell.json("compact", "--keep", "1h")["revision"] < new
        for words in (("get", "a", "--revision", str(old)), ("watch", "--after", str(old))):
            code, out, err = shell(*words)
            assert (code, out) == (5, ""), err
        assert shell("get", "a", "--revision", str(new * 2))[0] == 2
        small.kill(NodeId("n1"))
        code, out, err = shell("put", "a", "3", "--timeout", "0.5")
        assert (code, out) == (3, "")
        assert f"no node answers on {address}: is the cluster up? Start one with `wbkv up" in err


def test_status(shell: Shell, cluster: LocalCluster) -> None:
    found = shell.json("status")
    assert found["cluster"] == cluster.config.id
    assert [node["name"] for node in found["nodes"]] == ["n1", "n2", "n3"]
    assert all(node["up"] and node["details"] and node["problem"] is None for node in found["nodes"])
    for partition in found["partitions"]:
        leaders = [member["node"] for member in partition["members"] if member["leads"]]
        assert leaders == [partition["leader"]]
        assert len(partition["members"]) == 3
    out = shell.out("status")
    assert out.startswith(f"cluster {cluster.config.id}: 3 of 3 nodes answer\n\nNODE  ADDRESS")
    assert len(out.splitlines()) == 2 + 4 + 1 + 10
    local = shell.out("status", "--data", str(cluster.data))
    assert local.startswith(f"cluster {cluster.config.id}: 3 of 3 nodes up\n")


def test_a_client_only_install_works(shell: Shell) -> None:
    assert client_only("put", "only/a", "1").returncode == 0
    assert client_only("get", "only/a").stdout == "1\n"
    assert client_only("scan", "only/").stdout == "KEY     VALUE\nonly/a  1\n"


# The page about the command is a session, from `wbkv up` to `wbkv down`.

PAGE = ROOT / "docs" / "cli.md"


def session() -> Iterator[tuple[str, str]]:
    """Every command of the page, and what it is said to print."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            given, _, said = example.partition("\n")
            yield given, said


def api_port() -> int:
    """A port that is free, and two more behind it."""
    while True:
        (base,) = free_ports(1)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(base, base + 3):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return base


def test_every_command_has_an_example() -> None:
    shown = {name for given, _ in session() for name in re.findall(r"wbkv (?:-\S+ )*([a-z]+)", given)}
    (offered,) = (a.choices for a in command.full_parser()._actions if isinstance(a.choices, dict))
    # Nodes of several machines, recorded histories and Spark have pages of their own.
    assert set(offered) - shown <= {"serve", "member", "repair", "clock", "check", "pipeline"}


def test_the_page_says_what_happens(tmp_path: Path) -> None:
    base, mark = api_port(), "@@@@\n"
    environment = {
        **os.environ,
        "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}",
        "WBKV_ENDPOINTS": f"127.0.0.1:{base}",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the page starts Python some forty times
    examples = list(session())
    given = [example.replace("wbkv up", f"wbkv up --api-port {base}") for example, _ in examples]
    script = "exec 2>&1\n" + "".join(f"{each}\nprintf {shlex.quote(mark)}\n" for each in given)
    try:
        done = subprocess.run(  # noqa: S603 - our own page
            ["/bin/bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
            timeout=2 * WAIT_S, text=True, check=True,
        )  # fmt: skip
    finally:
        down = [PROGRAM, "down", "--data", str(tmp_path / "demo")]
        subprocess.run(down, capture_output=True, check=False, timeout=WAIT_S)  # noqa: S603 - our own command
    printed = done.stdout.replace(f"127.0.0.1:{base}", "127.0.0.1:7400").split(mark)
    for (example, said), found in zip(examples, printed[:-1], strict=True):
        pattern = re.escape(said.rstrip()).replace(r"\.\.\.", ".*?")
        assert re.fullmatch(pattern, found.rstrip(), re.DOTALL), f"{example}\n{found}"
