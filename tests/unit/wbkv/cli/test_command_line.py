"""The `wbkv` command itself: what is offered, what is refused and how, and what its statuses mean."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from wbkv import errors
from wbkv.cli import main as command
from wbkv_proto.v1 import cluster_pb2, cluster_pb2_grpc, kv_pb2, kv_pb2_grpc

from tests.tree import ROOT
from tests.unit.wbkv.cli.client_only import client_only

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def offered(help_text: str) -> set[str]:
    rows = (line.split() for line in help_text.splitlines() if line.startswith("    ") and line[4] != " ")
    return {words[0] for words in rows if words} - {"COMMAND"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = command.main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code or 0))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_help_offers_all_that_is_installed_and_says_what_statuses_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert offered(out) >= {*command.OWN, "up", "down", "serve", "sim", "bench", "member"}
    for line in (
        "  1    negative result:",
        "  4    unknown: a write may have been executed",
        "  130  interrupted by Ctrl-C",
    ):
        assert line in out


def test_a_client_only_install_offers_the_clients_commands() -> None:
    done = client_only("--help")
    assert done.returncode == 0, done.stderr
    assert offered(done.stdout) == set(command.OWN) | ({"check"} & offered(done.stdout))


NEEDS_SERVER = "needs kvstore, which is not installed: pip install 'wbkv[server]'\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("up --data x", f"wbkv: up {NEEDS_SERVER}"),
        ("serve --data x", f"wbkv: serve {NEEDS_SERVER}"),
        ("sim --data x", f"wbkv: sim {NEEDS_SERVER}"),
        ("completion bash", "wbkv completion: this needs the package shtab: pip install 'wbkv[cli]'\n"),
        ("status --data x", f"wbkv status: --data {NEEDS_SERVER}"),
    ],
)
def test_a_command_of_another_extra_says_which(words: str, told: str) -> None:
    done = client_only(*words.split())
    assert (done.returncode, done.stderr) == (2, told)


def test_only_the_command_that_was_asked_for_is_loaded() -> None:
    code = (
        "import sys; from wbkv.cli.main import main\n"
        "status = main(['get', 'k', '-e', '127.0.0.1:1', '--timeout', '0.2'])\n"
        "print(status, *(name for name in sys.modules if name.split('.')[0] in"
        " ('kvstore', 'multicast', 'rich', 'shtab') or name.endswith('.txn')"
        " or name == 'importlib.metadata'))\n"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "3\n"


ONE_RANGE = "pass a prefix, or --from and --to, or --all: only one of them\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("scna user/", "wbkv: there is no command 'scna': did you mean scan?\n"),
        ("delete k", "wbkv: there is no command 'delete': did you mean del?\n"),
        ("start", "wbkv: there is no command 'start': did you mean up?\n"),
        ("xyzzy", "wbkv: there is no command 'xyzzy'; there are bench, "),
        ("get k --jsn", "wbkv get: error: unrecognized arguments: --jsn: did you mean --json?\n"),
        ("--jsn get k", "wbkv get: error: unrecognized arguments: --jsn: did you mean --json?\n"),
        ("scan --limt=3", "unrecognized arguments: --limt=3: did you mean --limit?\n"),
        ("get k --tim 3", "unrecognized arguments: --tim 3: did you mean --timeout?\n"),
        ("get", "wbkv get: error: the following arguments are required: KEY\n"),
        ("get a b", "wbkv get: error: unrecognized arguments: b\n"),
        ("get k --raw --long", "not allowed with argument --raw"),
        ("get k --timeout 0", "argument --timeout: 0 must be more than 0 seconds"),
        ("get k --timeout inf", "argument --timeout: inf must be more than 0 seconds"),
        ("get k --timeout soon", "argument --timeout: 'soon' is not a number of seconds"),
        ("get k --revision -1", "argument --revision: '-1' is not a number from 0"),
        ("get k --revision x", "argument --revision: 'x' is not a number from 0"),
        ("get --escaped a\\q", "wbkv get: column 2: \\q is not an escape"),
        ("put k", "wbkv put: give a value, or - to read it from the standard input, or --file FILE\n"),
        ("put k v --file f", "wbkv put: give a value, or -"),
        ("put k --file /nowhere/at/all", "/nowhere/at/all"),
        ("del", "wbkv del: give a key, or --prefix, or --from and --to, or --all\n"),
        ("del k --prefix k", "wbkv del: give a key, or --prefix"),
        ("del --prefix=", "wbkv del: this range contains all keys: pass --all to remove them all\n"),
        ("del --all", "wbkv del: --all removes every key: pass --yes, too, to confirm it. Nothing was"),
        ("del --all --prefix k --yes", f"wbkv del: {ONE_RANGE}"),
        ("scan u --from a", f"wbkv scan: {ONE_RANGE}"),
        ("scan u --prefix u", f"wbkv scan: {ONE_RANGE}"),
        ("watch --all --to u", f"wbkv watch: {ONE_RANGE}"),
        ("--endpoint h:1 get k", "wbkv: there is no option --endpoint: did you mean --endpoints?\n"),
        ("help gte", "wbkv: there is no command 'gte': did you mean get?\n"),
        (
            "scan --from m --to a",
            "wbkv scan: the range from b'm' to b'a' is empty: end must be greater than start\n",
        ),
        ("scan --limit 0", "argument --limit: 0 must be at least 1"),
        (
            "scan --count --limit 3",
            "wbkv scan: --count counts the whole range: omit --limit, --reverse and --after\n",
        ),
        ("compact now", "argument REVISION: 'now' is not a number from 0"),
        ("compact", "give a revision, or --keep TIME"),
        ("compact 7 --keep 1d", "give a revision, or --keep TIME"),
        ("compact --keep 1.5d", "argument --keep: '1.5d' is not a whole number with s, m, h or d, such as"),
        ("status --data x -e h:1", "wbkv status: pass --endpoints or --data, not both\n"),
        ("txn 'gte' --file f", "wbkv txn: pass the transaction or --file FILE, not both\n"),
        ("completion tcl", "argument SHELL: invalid choice: 'tcl' (choose from 'bash', 'fish', 'zsh')"),
        ("", "wbkv: error: the following arguments are required: COMMAND\n"),
        ("-e h:1 --json", "wbkv: error: the following arguments are required: COMMAND\n"),
    ],
)
def test_bad_usage_is_named(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", ["", "get", "member list"])
def test_help_is_a_command_too(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "help", *words.split())
    assert (code, err) == (0, "")
    assert (code, out, err) == run(capsys, *words.split(), "--help")


def test_nothing_is_removed_without_an_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # Python's, if the descriptor is closed
    code, _, err = run(capsys, "del", "--all")
    assert code == 2
    assert "pass --yes" in err


def test_ranges_are_passed_alike(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"--prefix", "--from", "--to", "--all"}
    for name in ("scan", "del", "watch"):
        assert options <= set(run(capsys, "help", name)[1].replace("[", " ").split()), name


def test_what_is_suggested_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is installed, or an option of the subcommand."""
    done = client_only("serv")
    assert "did you mean" not in done.stderr
    assert "serve" not in done.stderr.partition(";")[2]
    assert "did you mean --json?" in run(capsys, "member", "list", "--config", "f", "--jsn")[2]


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from {} import main
sys.exit(main())
"""
"""The program as it is installed, and a Ctrl-C while it imports a module."""


@pytest.mark.parametrize("imported", ["wbkv", "google.protobuf", "wbkv.cli.main", "wbkv.cli.get", "shtab"])
def test_ctrl_c_during_an_import_is_quiet(imported: str) -> None:
    program = PROJECT["project"]["scripts"]["wbkv"].partition(":")[0]
    words = ["completion", "bash"] if imported == "shtab" else ["get", "k", "-e", "127.0.0.1:1"]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", INTERRUPTED.format(imported, program), *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_mistake_in_a_transaction_is_pointed_at(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "txn", "when exists(a) than get a")
    assert code == 2
    assert err == (
        "wbkv txn: column 16: expected and, then, otherwise or the end, found than: did you mean then?\n"
        "  when exists(a) than get a\n"
        "                 ^\n"
    )


def test_options_may_stand_anywhere() -> None:
    def parsed(text: str) -> argparse.Namespace:
        words = text.split()
        before, name, after = command._split(words)
        assert name is not None
        parser = command.Parser(prog="wbkv")
        command.load(name).configure(parser)
        return parser.parse([*before, *after])

    first = parsed("-e h:1 --timeout 3 --json put k v")
    assert (first.key, first.value, first.endpoints, first.timeout) == ("k", "v", "h:1", 3.0)
    assert first.json
    for text in (
        "put -e h:1 --timeout 3 --json k v",
        "put k --json v --timeout 3 -e h:1",
        "--endpoints=h:1 put --json k --timeout=3 v",
        "--json --timeout 3 put -e h:1 -- k v",
    ):
        assert parsed(text) == first, text
    assert parsed("get -- -k").key == "-k"


def test_what_is_missing_only_when_it_runs_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy:
        help = "needs more than was looked for"

        def configure(self, parser: argparse.ArgumentParser) -> None:
            pass

        def run(self, arguments: argparse.Namespace) -> int:
            raise ModuleNotFoundError("No module named 'uvloop'", name="uvloop")

    monkeypatch.setattr(command, "load", lambda name: Lazy())
    told = "wbkv serve: serve needs uvloop, which is not installed: pip install 'wbkv[server]'\n"
    assert run(capsys, "serve") == (2, "", told)


def test_the_version() -> None:
    done = client_only("--version")
    assert (done.returncode, done.stdout) == (0, "wbkv 0.1.0\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Pinned("a snapshot holds it"), 1), (errors.InvalidRequest("bad"), 2),
        (errors.LimitExceeded("too large"), 2), (errors.FutureRevision("not yet"), 2),
        (errors.Unavailable("no quorum"), 3), (errors.DeadlineExceeded("too late"), 3),
        (errors.OutcomeUnknown("no answer"), 4), (errors.Compacted("gone", 7), 5),
        (errors.ServerError("broken"), 6), (errors.ResponseTooLarge("too large", 7), 6),
    ],
)  # fmt: skip
def test_every_error_has_its_status(error: errors.Error, status: int) -> None:
    assert command.status_of(error) == status


def test_a_cluster_that_is_not_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = f"no node answers on 127.0.0.1:{port}: is the cluster up? Start one with `wbkv up"
    for words in ("get k", "put k v", "scan", "watch", "status", "snapshot"):
        code, out, err = run(capsys, *words.split(), "-e", f"127.0.0.1:{port}", "--timeout", "0.3")
        assert (code, out) == (3, ""), words
        assert err.startswith(f"wbkv {words.split()[0]}: {told}"), words
    monkeypatch.setenv("WBKV_ENDPOINTS", f"127.0.0.1:{port}")
    code, _, err = run(capsys, "get", "k", "--timeout", "0.3")
    assert code == 3
    assert told in err


def test_a_bad_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "get", "k", "-e", "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err


# Completion


def complete(*words: str, script: Path) -> list[str]:
    """What bash offers for the last of the words."""
    code = (
        f'source "$SCRIPT"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        '$(complete -p wbkv | sed "s/.*-F \\([^ ]*\\).*/\\1/"); printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", "--norc", "-c", code], env={**os.environ, "SCRIPT": str(script)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "completion", "bash")
    assert code == 0
    script = tmp_path / "wbkv.bash"
    script.write_text(out)
    assert complete("wbkv", "sc", script=script) == ["scan"]
    assert complete("wbkv", "s", script=script) == ["scan", "serve", "sim", "snapshot", "status"]
    assert complete("wbkv", "scan", "--li", script=script) == ["--limit"]
    assert "--raw" in complete("wbkv", "get", "--", script=script)
    assert "--limit" not in complete("wbkv", "get", "--", script=script)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert "scan" in out
    assert "wbkv" in out


# A node that takes requests and never answers


class Silent(kv_pb2_grpc.KVServicer):
    """Holds every request until the test ends."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def Get(self, request: kv_pb2.GetRequest, context: grpc.ServicerContext) -> kv_pb2.GetResponse:  # noqa: N802 - gRPC's
        self._ended.wait()
        return kv_pb2.GetResponse()

    def Put(self, request: kv_pb2.PutRequest, context: grpc.ServicerContext) -> kv_pb2.PutResponse:  # noqa: N802 - gRPC's
        self._ended.wait()
        return kv_pb2.PutResponse()


class Map(cluster_pb2_grpc.ClusterServicer):
    """Says that there is nobody else."""

    address = ""

    def Topology(  # noqa: N802 - gRPC's
        self, request: cluster_pb2.TopologyRequest, context: grpc.ServicerContext
    ) -> cluster_pb2.TopologyResponse:
        placement = cluster_pb2.Placement(
            version=1, scheme=cluster_pb2.Placement.ORDERED, starts=[b""], owners=[0]
        )
        return cluster_pb2.TopologyResponse(
            nodes=[cluster_pb2.Node(name="n1", address=self.address)],
            partitions=[cluster_pb2.Partition(id=0, leader="n1", members=["n1"])],
            placement=placement,
            limits=cluster_pb2.Limits(message_bytes=1 << 20, response_bytes=1 << 20),
        )


@pytest.fixture
def silent_node() -> Iterator[str]:
    ended, told = threading.Event(), Map()
    server = grpc.server(ThreadPoolExecutor(8))
    kv_pb2_grpc.add_KVServicer_to_server(Silent(ended), server)  # type: ignore[no-untyped-call]  # generated
    cluster_pb2_grpc.add_ClusterServicer_to_server(told, server)  # type: ignore[no-untyped-call]  # generated
    told.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield told.address
    finally:
        ended.set()
        server.stop(None).wait()


def test_a_write_without_an_answer_is_unknown_and_a_read_is_not_done(
    silent_node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "put", "k", "v", "-e", silent_node, "--timeout", "1")
    assert (code, out) == (4, "")
    assert "may have been executed" in err
    code, out, err = run(capsys, "get", "k", "-e", silent_node, "--timeout", "1")
    assert (code, out) == (3, "")
    assert f"no answer within 1 s from {silent_node}" in err
