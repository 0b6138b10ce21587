"""Configurations: what is written is read again, and every mistake is named with its file, line and key."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.config.addresses import INCARNATION_MAX, NodeId
from kvstore.config.checks import CLOCKS, DELAY_MAX_MS, DURABILITY, ConfigError
from kvstore.config.history import (
    KEEP_BYTES_MIN,
    KEEP_HISTORY,
    KEEP_MAX_S,
    KeepHistory,
    parse_duration,
    show_duration,
)
from kvstore.config.model import Config, NodeConfig, default_members
from kvstore.config.toml import dump_config, load_config
from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.protocol import Timing
from multicast.types import GroupId, ReplicaId
from multicast.whitebox import WhiteBox

SECRET = "5e" * 32

PLAIN = """\
# A cluster of three.
[cluster]
id = "c1"
secret = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e"
[timing]
election_s = 0.8

[nodes.n1]
address = "127.0.0.1:7101"
data = "n1"
incarnation = "a1"
region = "eu"

[nodes.n2]
address = "127.0.0.1:7102"
data = "/var/lib/wbkv/n2"
incarnation = "b2"
region = "us-east"

[nodes.n3]
address = "[::1]:7103"
data = "disks/n3"
incarnation = "7fffffffffffffff"

[groups.0]
members = ["n1", "n2", "n3"]

[groups.7]
members = ["n3"]

[delays]
"eu-us-east" = 40
n1-n3 = 2.5
"""
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def load(folder: Path, text: str) -> Config:
    file = folder / "cluster.toml"
    file.write_text(text)
    return load_config(file)


@pytest.fixture
def plain(tmp_path: Path) -> Config:
    return load(tmp_path, PLAIN)


# What a configuration gives


def test_what_the_file_leaves_out_is_as_usual(plain: Config) -> None:
    assert (plain.id, plain.protocol, plain.durability) == ("c1", "whitebox", "fsync")
    assert plain.protocol_type is WhiteBox
    assert plain.timing == Timing(election_s=0.8)


def test_nodes_have_addresses_disks_and_sockets(plain: Config, tmp_path: Path) -> None:
    assert plain.addresses == {N1: ("127.0.0.1", 7101), N2: ("127.0.0.1", 7102), N3: ("::1", 7103)}
    assert plain.data(N1) == tmp_path / "n1"
    assert plain.data(N2) == Path("/var/lib/wbkv/n2")
    assert plain.status_socket(N1) == tmp_path / "n1.sock"
    assert plain.status_socket(N3) == tmp_path / "disks" / "n3.sock"


def test_paths_do_not_change_with_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster.toml").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    config = load_config("cluster.toml")
    monkeypatch.chdir("/")
    assert config.data(N1) == tmp_path / "n1"


def test_replicas_are_numbered_as_listed_and_have_their_nodes_incarnations(plain: Config) -> None:
    g0, g7 = GroupId(0), GroupId(7)
    first = (ReplicaId(g0, 0, 0xA1), ReplicaId(g0, 1, 0xB2), ReplicaId(g0, 2, INCARNATION_MAX))
    assert plain.topology.members(g0) == first
    assert plain.topology.members(g7) == (ReplicaId(g7, 0, INCARNATION_MAX),)
    assert [plain.node_of(replica) for replica in first] == [N1, N2, N3]
    assert plain.placement == {**dict(zip(first, (N1, N2, N3), strict=True)), ReplicaId(g7, 0, 2**63 - 1): N3}


@pytest.mark.parametrize("stranger", [(0, 0, 0xA2), (0, 3, 0xA1), (1, 0, 0xA1)])
def test_a_replica_of_another_disk_is_on_no_node(plain: Config, stranger: tuple[int, int, int]) -> None:
    group, number, incarnation = stranger
    with pytest.raises(InvalidArgument, match="is not in this cluster"):
        plain.node_of(ReplicaId(GroupId(group), number, incarnation))


def test_unknown_nodes_are_named(plain: Config) -> None:
    assert plain.node("n1") == N1
    with pytest.raises(ConfigError, match=r'unknown node "n11"; did you mean "n1"\?'):
        plain.node("n11")
    with pytest.raises(ConfigError, match=r'unknown node "x"; known: n1, n2, n3$'):
        plain.node("x")


AGREED = [
    ('id = "c1"', 'id = "c2"'),
    ('id = "c1"', 'id = "c1"\nprotocol = "ftskeen"'),
    ('incarnation = "a1"', 'incarnation = "a2"'),
    ('members = ["n1", "n2", "n3"]', 'members = ["n2", "n1", "n3"]'),
    ('members = ["n3"]', 'members = ["n2"]'),
    ("[groups.7]", "[groups.8]"),
]
OWN = [
    ('id = "c1"', 'id = "c1"\ndurability = "os"'),
    ("election_s = 0.8", "election_s = 0.9"),
    ('data = "n1"', 'data = "elsewhere"'),
    ("127.0.0.1:7101", "127.0.0.1:7111"),
    ("n1-n3 = 2.5", "n1-n3 = 3"),
    ("[delays]", '[store]\nkeep_history = "1d"\n[delays]'),
    ("[delays]", "[store]\nkeep_history_bytes = 1048576\n[delays]"),
    ("[delays]", '[trace]\ndeliveries = "traces"\n[delays]'),
    ("[groups.0]", '[nodes.spare]\naddress = "h:1"\ndata = "s"\nincarnation = "c"\n[groups.0]'),
    ("[groups.0]", '[nodes.spare]\naddress = "h:1"\ndata = "s"\n[groups.0]'),
]


@pytest.mark.parametrize(("before", "after"), AGREED)
def test_the_hash_is_of_what_nodes_must_agree_on(
    plain: Config, tmp_path: Path, before: str, after: str
) -> None:
    assert before in PLAIN
    assert load(tmp_path, PLAIN.replace(before, after)).hash != plain.hash


@pytest.mark.parametrize(("before", "after"), OWN)
def test_the_hash_is_of_nothing_else(plain: Config, tmp_path: Path, before: str, after: str) -> None:
    assert before in PLAIN
    changed = load(tmp_path, PLAIN.replace(before, after))
    assert changed != plain
    assert changed.hash == plain.hash


def test_the_hash_does_not_go_by_the_order_in_the_file(plain: Config) -> None:
    groups, nodes = dict(reversed([*plain.groups.items()])), dict(reversed([*plain.nodes.items()]))
    turned = dataclasses.replace(plain, groups=groups, nodes=nodes)
    assert turned.hash == plain.hash


# Delays


def test_delays_hold_both_ways_and_between_all_nodes_of_the_regions(plain: Config) -> None:
    assert plain.delays_s == {(N1, N2): 0.04, (N2, N1): 0.04, (N1, N3): 0.0025, (N3, N1): 0.0025}


def delays(folder: Path, lines: str) -> dict[str, float]:
    text = PLAIN.partition("[delays]")[0] + "[delays]\n" + lines
    found = load(folder, text.replace('"7fffffffffffffff"', '"7fffffffffffffff"\nregion = "eu"')).delays_s
    return {f"{a}{b}": round(delay_s * 1000, 6) for (a, b), delay_s in found.items()}


def test_a_direction_can_have_a_delay_of_its_own(tmp_path: Path) -> None:
    found = delays(tmp_path, "eu-us-east = 40\nus-east-eu = 50")
    assert found == {"n1n2": 40, "n3n2": 40, "n2n1": 50, "n2n3": 50}


def test_nodes_count_more_than_regions(tmp_path: Path) -> None:
    found = delays(tmp_path, "eu-us-east = 40\nn2-n1 = 0\nn2-eu = 7\neu-eu = 1")
    assert found == {"n1n2": 0, "n2n1": 0, "n2n3": 7, "n3n2": 7, "n1n3": 1, "n3n1": 1}


def test_no_delays_are_none(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN.partition("[delays]")[0]).delays_s == {}


def test_deliveries_are_recorded_beside_the_file_or_elsewhere_or_not(plain: Config, tmp_path: Path) -> None:
    assert plain.trace_folder is None
    for written, found in (("traces", tmp_path / "traces"), ("/var/traces", Path("/var/traces"))):
        config = load(tmp_path, f'{PLAIN}\n[trace]\ndeliveries = "{written}"\n')
        assert config.trace_folder == found
    assert load(tmp_path, f"{PLAIN}\n[trace]\n").trace_folder is None


# Mistakes


def at(line: int, what: str) -> str:
    return f", line {line}: {what}"


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        # The file
        ('id = "c1"', 'id = "c1', ": not TOML: Illegal character '\\n' (at line 3, column 9)"),
        ("[timing]", "[cluster]", ": not TOML: Cannot declare ('cluster',) twice (at line 5, column 9)"),
        # Keys
        ("[timing]", "[timings]", at(5, 'timings: unknown key; did you mean "timing"?')),
        (
            "[timing]",
            "[quux]",
            at(5, "quux: unknown key; known: cluster, store, timing, nodes, groups, delays, disk, trace"),
        ),
        ('data = "n1"', 'dada = "n1"', at(10, 'nodes.n1.dada: unknown key; did you mean "data"?')),
        ("election_s", "elections_s", at(6, 'timing.elections_s: unknown key; did you mean "election_s"?')),
        ("members = [", "member = [", at(26, 'groups.0.member: unknown key; did you mean "members"?')),
        ('id = "c1"', 'id = "c1"\nport = 1', at(4, "cluster.port: unknown key; known: id, secret, protocol")),
        # Missing
        ("[cluster]\nid = ", "[clusters]\nid = ", at(2, 'clusters: unknown key; did you mean "cluster"?')),
        ('id = "c1"', "", at(2, "cluster.id: missing")),
        ('data = "n1"\n', "", at(8, "nodes.n1.data: missing")),
        ('incarnation = "a1"\n', "", at(8, "nodes.n1.incarnation: missing: it is in a group")),
        ('members = ["n3"]', "", at(28, "groups.7.members: missing")),
        # Types
        ('id = "c1"', "id = 3", at(3, "cluster.id: must be a string, not 3")),
        ('id = "c1"', "id = true", at(3, "cluster.id: must be a string, not true")),
        ('data = "n1"', 'data = ["n1"]', at(10, "nodes.n1.data: must be a string, not ['n1']")),
        ('members = ["n3"]', 'members = "n3"', at(29, 'groups.7.members: must be a list of nodes, not "n3"')),
        ('members = ["n3"]', "members = [3]", at(29, "groups.7.members: must be a list of nodes, not [3]")),
        ("[groups.7]\nmembers =", "[groups]\n7 =", at(29, "groups.7: must be a table, not ['n3']")),
        ("= 0.8", '= "0.8"', at(6, 'timing.election_s: must be a number, not "0.8"')),
        ("= 0.8", "= true", at(6, "timing.election_s: must be a number, not true")),
        ("= 0.8", "= inf", at(6, "timing.election_s: must be a number, not inf")),
        ("= 0.8", "= nan", at(6, "timing.election_s: must be a number, not nan")),
        ("= 0.8", f"= {2**63}", at(6, f"timing.election_s: must be a number, not {2**63}")),
        ("election_s = 0.8", "history = 0.5", at(6, "timing.history: must be a whole number, not 0.5")),
        # Values
        ('"c1"', '"c 1"', at(3, 'cluster.id: "c 1" is not a valid name')),
        ('"c1"', '""', at(3, 'cluster.id: "" is not a valid name')),
        (
            'id = "c1"',
            'id = "c1"\nprotocol = "whitbox"',
            at(4, 'cluster.protocol: "whitbox" is not one of whitebox, fastcast, ftskeen, skeen, '),
        ),
        ('"c1"', '"c1"\nprotocol = "whitbox"', '; did you mean "whitebox"?'),
        ('"c1"', '"c1"\ndurability = "disk"', at(4, 'cluster.durability: "disk" is not one of fsync, os')),
        ('"c1"', '"c1"\nclock = "logic"', at(4, 'cluster.clock: "logic" is not one of hybrid, logical;')),
        ('"c1"', '"c1"\nclock = "logical"', at(4, 'cluster.clock: "logical" does not work with the store')),
        (
            '"c1"',
            '"c1"\nprotocol = "skeen"',
            at(4, 'cluster.protocol: "skeen": Skeen\'s protocol needs groups of one process'),
        ),
        (
            "= 0.8",
            "= 0.1",
            at(6, "timing.election_s: election_s (0.1) must be at least twice heartbeat_s (0.1)"),
        ),
        ("election_s = 0.8", "heartbeat_s = 1", at(5, "timing: election_s (0.4) must be at least twice")),
        ("election_s = 0.8", "retry_s = -1", at(6, "timing.retry_s: retry_s must be positive, not -1")),
        ("[nodes.n1]", '[nodes."n/1"]', at(8, 'nodes."n/1": "n/1" is not a valid name')),
        ("[nodes.n1]", '[nodes.".n1"]', at(8, 'nodes.".n1": ".n1" is not a valid name')),
        ("127.0.0.1:7101", "127.0.0.1", at(9, 'nodes.n1.address: "127.0.0.1" is not HOST:PORT')),
        ("127.0.0.1:7101", ":7101", at(9, 'nodes.n1.address: ":7101" is not HOST:PORT')),
        ("127.0.0.1:7101", "127.0.0.1:0", at(9, 'nodes.n1.address: "127.0.0.1:0" is not HOST:PORT')),
        ("127.0.0.1:7101", "127.0.0.1:65536", at(9, 'nodes.n1.address: "127.0.0.1:65536" is not')),
        ("[::1]", "::1", at(21, 'nodes.n3.address: "::1:7103" is not HOST:PORT')),
        (
            "127.0.0.1:7102",
            "127.0.0.1:7101",
            at(15, 'nodes.n2.address: "127.0.0.1:7101" is used by n1 already'),
        ),
        ('"disks/n3"', '"x/../n1"', at(22, 'nodes.n3.data: "x/../n1" is used by n1 already')),
        ('"disks/n3"', '""', at(22, 'nodes.n3.data: "" is not a folder')),
        ('"disks/n3"', '"a\\u0000b"', at(22, 'nodes.n3.data: "a\\u0000b" is not a folder')),
        ('"b2"', '"00a1"', at(17, 'nodes.n2.incarnation: "00000000000000a1" is used by n1 already')),
        ('"b2"', '"0"', at(17, "nodes.n2.incarnation: 0 is not in 1..7fffffffffffffff")),
        ('"b2"', f'"{2**63:x}"', at(17, "nodes.n2.incarnation: 8000000000000000 is not in 1..")),
        ('"b2"', '"0xb2"', at(17, 'nodes.n2.incarnation: "0xb2" is not a hexadecimal number')),
        ('"eu"', '"e u"', at(12, 'nodes.n1.region: "e u" is not a valid name')),
        ('"eu"', '"n2"', at(12, 'nodes.n1.region: "n2" is a node\'s name already')),
        ("[groups.7]", "[groups.1024]", at(28, "groups.1024: group ids are 0..1023")),
        ("[groups.7]", "[groups.07]", at(28, 'groups.07: "07" is not a group id')),
        ("[groups.7]", "[groups.-7]", at(28, 'groups.-7: "-7" is not a group id')),
        ('["n3"]', '["n4"]', at(29, 'groups.7.members: unknown node "n4"; known: n1, n2, n3')),
        ('["n3"]', "[]", at(29, "groups.7.members: group 7 has 0 members; it needs an odd number")),
        ('["n3"]', '["n1", "n2"]', at(29, "groups.7.members: group 7 has 2 members; it needs an odd number")),
        ('["n3"]', '["n1", "n2", "n1"]', at(29, 'groups.7.members: "n1" is listed twice')),
        ("n1-n3 =", "n1-n4 =", at(33, "delays.n1-n4: not FROM-TO, two of eu, n1, n2, n3, us-east")),
        ("n1-n3 =", "n1 =", at(33, "delays.n1: not FROM-TO")),
        ("n1-n3 =", "n1-n1 =", at(33, "delays.n1-n1: a node has no link to itself")),
        ("= 2.5", "= -1", at(33, "delays.n1-n3: -1 ms is not in 0..60000")),
        ("= 2.5", "= 60001", at(33, "delays.n1-n3: 60001 ms is not in 0..60000")),
        ("= 2.5", "= nan", at(33, "delays.n1-n3: must be a number, not nan")),
        (
            "[delays]",
            "[disk]\nscrub_hours = -1\n[delays]",
            at(32, "disk.scrub_hours: -1 is not in 0.001..8760.0 (or 0, for never)"),
        ),
        (
            "[delays]",
            "[disk]\nscrub_hours = true\n[delays]",
            at(32, "disk.scrub_hours: must be a number, not true"),
        ),
        ("[delays]", '[trace]\ndeliveries = ""\n[delays]', at(32, 'trace.deliveries: "" is not a folder')),
        (
            "[delays]",
            "[trace]\ndeliveries = 1\n[delays]",
            at(32, "trace.deliveries: must be a string, not 1"),
        ),
        (
            "[delays]",
            '[trace]\nfolder = "t"\n[delays]',
            at(32, "trace.folder: unknown key; known: deliveries"),
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    assert before in PLAIN
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, PLAIN.replace(before, after, 1))
    message = str(refused.value)
    assert message.startswith(str(tmp_path / "cluster.toml"))
    assert complaint in message
    assert "\n" not in message


def test_names_with_dashes_must_not_make_a_delay_ambiguous(tmp_path: Path) -> None:
    text = PLAIN.replace('"us-east"', '"b-c"').replace('"eu"', '"a"').partition("[delays]")[0]
    text = text.replace('"7fffffffffffffff"', '"7fffffffffffffff"\nregion = "a-b"').replace(
        "[nodes.n2]", "[nodes.c]"
    )
    with pytest.raises(ConfigError, match=r"delays.a-b-c: ambiguous: a to b-c or a-b to c$"):
        load(tmp_path, text.replace('"n2"', '"c"') + "[delays]\na-b-c = 1")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cluster.toml: cluster: missing"),
        ('[cluster]\nid = "c"\n[groups.0]\nmembers = []', "cluster.toml: nodes: missing"),
        (
            f'[cluster]\nid = "c"\nsecret = "{SECRET}"\n[nodes]\n[groups]',
            "cluster.toml, line 4: nodes: a cluster needs at least one node",
        ),
        (
            PLAIN.partition("[groups.0]")[0] + "[groups]",
            "line 25: groups: a cluster needs at least one group",
        ),
    ],
)
def test_what_a_cluster_cannot_do_without(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("style", "line"),
    [
        ('[nodes]\nn1 = { address = "h:1", data = "d", incarnation = "x" }', 2),
        ('[nodes]\n# incarnation = "x"\nn1.address = "h:1"\nn1.data = "d"\nn1.incarnation = "x"', 5),
        ('[ nodes . \'n1\' ]\naddress = "h:1"\ndata = "d"\n"incarnation" = \'x\'', 4),
        ('nodes.n1.address = "h:1"\nnodes.n1.data = "d"\nnodes.n1.incarnation = "x"', 3),
    ],
)
def test_lines_are_found_in_other_styles_too(tmp_path: Path, style: str, line: int) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, style + '\n[cluster]\nid = "c"\n[groups.0]\nmembers = ["n1"]')
    assert f', line {line}: nodes.n1.incarnation: "x" is not' in str(refused.value)


def test_no_line_is_better_than_a_wrong_one(tmp_path: Path) -> None:
    text = PLAIN.replace('data = "n1"', 'data = """\nn1"""').replace("127.0.0.1:7101", "nowhere")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'cluster.toml'}: nodes.n1.address: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file or directory$"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"id = '\xe9'")
    with pytest.raises(ConfigError, match=r"latin\.toml: not UTF-8: .* at byte 6"):
        load_config(tmp_path / "latin.toml")


def test_a_configuration_made_in_code_is_checked_too(plain: Config) -> None:
    with pytest.raises(ConfigError, match=r"timing\.retry_s: inf is not in 0\.\."):
        dataclasses.replace(plain, timing=Timing(retry_s=float("inf")))
    with pytest.raises(ConfigError, match=r'groups\.0\.members: unknown node "n3"'):
        dataclasses.replace(plain, nodes={name: node for name, node in plain.nodes.items() if name != N3})
    nodes = {**plain.nodes, N1: dataclasses.replace(plain.nodes[N1], incarnation=-1)}
    with pytest.raises(ConfigError, match=r"nodes\.n1\.incarnation: -1 is not in"):
        dataclasses.replace(plain, nodes=nodes)


# Local clusters


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_with_a_replica_everywhere_all_groups_list_the_nodes_in_one_order(nodes: int, tmp_path: Path) -> None:
    config = Config.local(nodes, 7, nodes, tmp_path)
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    assert set(config.groups.values()) == {names}
    leaders = [config.node_of(config.topology.preferred_leader(group)) for group in config.topology.groups]
    assert leaders == list(itertools.islice(itertools.cycle(names), 7))


@pytest.mark.parametrize(("nodes", "replicas"), list(itertools.product(range(1, 9), (1, 3, 5))))
def test_leaders_and_replicas_are_spread_evenly(nodes: int, replicas: int, tmp_path: Path) -> None:
    if replicas > nodes:
        with pytest.raises(
            ConfigError, match=f"{replicas} replicas of a group need as many nodes, not {nodes}"
        ):
            Config.local(nodes, 2 * nodes, replicas, tmp_path)
        return
    config = Config.local(nodes, 2 * nodes, replicas, tmp_path)
    leaders = (config.node_of(config.topology.preferred_leader(group)) for group in config.topology.groups)
    assert Counter(leaders) == dict.fromkeys(config.nodes, 2)
    assert Counter(config.placement.values()) == dict.fromkeys(config.nodes, 2 * replicas)


def test_a_local_cluster_is_new(tmp_path: Path) -> None:
    one, two = (Config.local(3, 3, 3, tmp_path, ports=[5, 6, 7], durability="os") for _ in range(2))
    assert one.id != two.id
    assert one.durability == "os"
    assert {node.incarnation for node in one.nodes.values()}.isdisjoint(
        node.incarnation for node in two.nodes.values()
    )
    assert [node.address for node in one.nodes.values()] == ["127.0.0.1:5", "127.0.0.1:6", "127.0.0.1:7"]
    assert one.data(N2) == tmp_path / "n2"
    assert one.status_socket(N2) == tmp_path / "n2.sock"


def test_clocks_are_hybrid_unless_plain_messages_want_others(plain: Config, tmp_path: Path) -> None:
    assert plain.clock == "hybrid"
    text = PLAIN.replace('"c1"', '"c1"\napplication = "multicast"\nclock = "logical"')
    logical = load(tmp_path, text)
    assert logical.clock == "logical"
    # Nodes with different clocks work together.
    assert logical.hash == load(tmp_path, text.replace('"logical"', '"hybrid"')).hash


def test_groups_can_be_placed_freely(tmp_path: Path) -> None:
    """A node that has one replica only, which leads its group."""
    groups = default_members(3, 4, 3)
    groups[2][2] = "n4"
    config = Config.local(4, 4, 3, tmp_path, groups=groups)
    assert [config.groups[GroupId(g)] for g in range(4)] == [
        ("n1", "n2", "n3"), ("n1", "n2", "n3"), ("n1", "n2", "n4"), ("n1", "n2", "n3"),
    ]  # fmt: skip
    assert config.node_of(config.topology.preferred_leader(GroupId(2))) == "n4"
    assert [replica.group for replica, node in config.placement.items() if node == "n4"] == [2]
    with pytest.raises(ConfigError, match="groups has members of 4 groups, and there are 3"):
        Config.local(4, 3, 3, tmp_path, groups=groups)
    with pytest.raises(ConfigError, match=r'groups\.2\.members: unknown node "n4"'):
        Config.local(3, 4, 3, tmp_path, groups=groups)


def test_nodes_can_be_in_regions(tmp_path: Path) -> None:
    delays_ms = {"eu-us": 40.0}
    config = Config.local(3, 1, 3, tmp_path, regions={"n1": "eu", "n3": "us"}, delays_ms=delays_ms)
    assert [node.region for node in config.nodes.values()] == ["eu", None, "us"]
    assert config.delays_s == {(N1, N3): 0.04, (N3, N1): 0.04}
    with pytest.raises(ConfigError, match='regions: unknown node "n4"'):
        Config.local(3, 1, 3, tmp_path, regions={"n4": "eu"})


@pytest.mark.parametrize("wrong", ["nodes", "partitions", "replicas"])
def test_a_local_cluster_needs_one_of_each(wrong: str, tmp_path: Path) -> None:
    sizes = {"nodes": 3, "partitions": 3, "replicas": 3, wrong: 0}
    with pytest.raises(ConfigError, match=f"{wrong} must be at least 1, not 0"):
        Config.local(sizes["nodes"], sizes["partitions"], sizes["replicas"], tmp_path)


def test_a_cluster_can_move_to_other_ports(plain: Config) -> None:
    moved = plain.moved([1, 2, 3])
    assert moved.addresses == {N1: ("127.0.0.1", 1), N2: ("127.0.0.1", 2), N3: ("::1", 3)}
    assert moved.hash == plain.hash


# Round trips

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)
SECONDS = st.floats(1e-6, 1e6)
COUNTS = st.integers(1, 2**62)
HOSTS = st.sampled_from(["127.0.0.1", "[::1]", "db-1.example.org", "localhost"])
PATHS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1).filter(
    str.strip
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    names = [NodeId(name) for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))]
    incarnations = draw(
        st.lists(st.integers(1, INCARNATION_MAX), min_size=len(names), max_size=len(names), unique=True)
    )
    regions = NAMES.filter(lambda name: name not in names)
    nodes = {
        name: NodeConfig(
            f"{draw(HOSTS)}:{10 + number}", f"{number}/{draw(PATHS)}", incarnation, draw(st.none() | regions)
        )
        for number, (name, incarnation) in enumerate(zip(names, incarnations, strict=True))
    }
    protocol = draw(st.sampled_from(sorted(PROTOCOLS | VARIANTS)))
    sizes = [1] if protocol == "skeen" else range(1, len(names) + 1, 2)
    groups = {}
    for group in draw(st.lists(st.integers(0, 1023), min_size=1, max_size=4, unique=True)):
        size = draw(st.sampled_from(sizes))
        groups[GroupId(group)] = tuple(draw(st.permutations(names))[:size])
    timing: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "retry_s": SECONDS,
                "orphan_s": SECONDS | st.integers(1, 9),
                "part_bytes": COUNTS,
                "history": COUNTS | st.just(0),
            },
        )
    )
    if draw(st.booleans()):
        timing["heartbeat_s"] = draw(SECONDS)
        timing["election_s"] = timing["heartbeat_s"] * 3
    delays_ms = {}
    if len(names) > 1:
        for pair in draw(st.lists(st.permutations(names), max_size=3)):
            delays_ms[f"{pair[0]}-{pair[1]}"] = draw(st.integers(0, 9) | st.floats(0, DELAY_MAX_MS))
    made: dict[str, Any] = {
        "id": draw(NAMES),
        "nodes": nodes,
        "groups": groups,
        "protocol": protocol,
        "durability": draw(st.sampled_from(DURABILITY)),
        **draw(st.sampled_from([{}, *({"application": "multicast", "clock": clock} for clock in CLOCKS)])),
        "timing": Timing(**timing),
        "keep_history": draw(
            st.builds(
                KeepHistory,
                st.none() | st.integers(1, KEEP_MAX_S),
                st.none() | st.integers(KEEP_BYTES_MIN, 1 << 50),
            )
        ),
        "trace": draw(st.none() | PATHS),
    }
    try:
        return Config(**made, delays_ms=delays_ms)
    except ConfigError as error:
        # Drawn names can make a delay ambiguous, and drawn paths two disks one.
        if error.keys[0] == "delays":
            return Config(**made)
        raise


@settings(deadline=None)
@given(configs())
def test_what_is_written_is_read_again(config: Config) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.toml"
        dump_config(config, file)
        assert [found.name for found in Path(folder).iterdir()] == ["cluster.toml"]
        again = load_config(file)
    assert again == config
    assert again.hash == config.hash
    assert again.delays_s == config.delays_s
    assert again.topology.groups == config.topology.groups
    assert again.placement == config.placement


def test_a_file_that_cannot_be_written_leaves_the_old_one(plain: Config, tmp_path: Path) -> None:
    nodes = {**plain.nodes, N1: dataclasses.replace(plain.nodes[N1], data="\ud800")}
    with pytest.raises(UnicodeEncodeError):
        dump_config(dataclasses.replace(plain, nodes=nodes), tmp_path / "cluster.toml")
    assert load_config(tmp_path / "cluster.toml") == plain


@pytest.mark.parametrize("wrong", ['"feed"', '""', "7", "[1]", '"' + "0g" * 32 + '"', f'"{SECRET}5e"'])
def test_a_wrong_secret_is_named_but_not_shown(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, PLAIN.replace(f'"{SECRET}"', wrong))
    assert "line 4: cluster.secret: the value (not shown) is not 64 hexadecimal digits" in str(refused.value)
    assert (
        wrong.strip('"') not in str(refused.value).partition("line 4")[2].replace("64", "") or wrong == '""'
    )


def test_a_file_without_a_secret_says_how_to_make_one(tmp_path: Path) -> None:
    """A cluster of an earlier version has none; no node starts without."""
    with pytest.raises(ConfigError, match=r"cluster.secret: missing; .*openssl rand -hex 32"):
        load(tmp_path, PLAIN.replace(f'secret = "{SECRET}"', ""))


def test_a_secret_is_made_with_the_cluster_and_kept(tmp_path: Path) -> None:
    made = Config.local(3, 1, 3, tmp_path)
    assert made.secret != Config.local(3, 1, 3, tmp_path).secret
    assert made.with_node(NodeId("n4"), 7999).moved([1, 2, 3, 4]).secret == made.secret
    old = os.umask(0)
    try:
        dump_config(made, tmp_path / "cluster.toml")
    finally:
        os.umask(old)
    assert (tmp_path / "cluster.toml").stat().st_mode & 0o777 == 0o600
    assert load_config(tmp_path / "cluster.toml") == made
    assert made.secret.reveal() not in repr(made)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            'keep_history = "5 days"',
            'store.keep_history: "5 days" is not a duration; write a whole number and',
        ),
        ('keep_history = "never"', 'store.keep_history: "never" is not a duration'),
        ('keep_history = "1.5d"', 'store.keep_history: "1.5d" is not a duration'),
        ("keep_history = 86400", "store.keep_history: 86400 is not a duration"),
        (
            'keep_history = "0s"',
            "store.keep_history: 0 s is not in 1s..3650d; to keep everything, write",
        ),
        ('keep_history = "3651d"', "store.keep_history: 315446400 s is not in 1s..3650d"),
        (
            "keep_history_bytes = 1000",
            "store.keep_history_bytes: 1000 is not in 1048576..2^63-1; leave",
        ),
        ("keep_history_bytes = 1e9", "store.keep_history_bytes: must be a whole number, not 1000000000.0"),
        ('keep_histroy = "1d"', 'store.keep_histroy: unknown key; did you mean "keep_history"?'),
    ],
)
def test_a_wrong_time_to_keep_history_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"line 8: {complaint}")):
        load(tmp_path, PLAIN.replace("election_s = 0.8", f"election_s = 0.8\n[store]\n{line}"))


def test_history_is_kept_for_a_day_by_new_clusters_and_for_ever_without_a_word(
    plain: Config, tmp_path: Path
) -> None:
    assert plain.keep_history == KeepHistory(None, None)
    local = Config.local(1, 1, 1, tmp_path)
    assert local.keep_history == KeepHistory(86_400) == KeepHistory.read(KEEP_HISTORY)
    dump_config(local, tmp_path / "local.toml")
    assert 'keep_history = "1d"' in (tmp_path / "local.toml").read_text()
    assert Config.local(1, 1, 1, tmp_path, application="multicast").keep_history == KeepHistory()


@pytest.mark.parametrize("text", ["90s", "15m", "12h", "1d", "7d", "forever", "61s", "25h"])
def test_durations_are_read_and_shown(text: str) -> None:
    assert show_duration(parse_duration(text)) == text
