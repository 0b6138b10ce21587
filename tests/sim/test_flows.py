"""The pictures in docs/flows are what the protocols do now, and tell the truth about δ."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from benchmarks import flows
from benchmarks.flows import FOLDER, TITLES

SVG = "{http://www.w3.org/2000/svg}"
LATENCIES = {
    "whitebox": ([3.0], [4.0]),
    "fastcast": ([4.0], [5.0]),
    "ftskeen": ([6.0], [7.0]),
    "skeen": ([2.0], []),
}
"""When m is delivered, in δ: by leaders, by followers."""
CONVOYS = {"whitebox": 5.0, "fastcast": 8.0, "ftskeen": 12.0, "skeen": 4.0}
"""When m is delivered at the latest, in δ, by leaders; by followers, one δ later."""


@pytest.fixture(scope="module")
def pictures() -> dict[str, str]:
    return flows.pictures()


def delivered(svg: str, label: str) -> list[float]:
    """When processes of this name deliver m, as the picture's own axis tells it."""
    root = ElementTree.fromstring(svg)  # noqa: S314  # our own output
    texts = [(t.text or "", float(t.get("x", "")), float(t.get("y", ""))) for t in root.iter(f"{SVG}text")]
    ticks = {text: x for text, x, _ in texts if re.fullmatch(r"\d+δ", text)}
    zero, delta = ticks["0δ"], ticks["1δ"] - ticks["0δ"]
    rows = {y - 4 for text, _, y in texts if text == label}
    marks = [group for group in root.iter(f"{SVG}g") if group.get("class") == "deliver"]
    dots = [dot for mark in marks for dot in mark.iter(f"{SVG}circle")]
    return [(float(dot.get("cx", "")) - zero) / delta for dot in dots if float(dot.get("cy", "")) in rows]


def test_the_committed_pictures_are_up_to_date(pictures: dict[str, str]) -> None:
    """If this fails because the protocols or the pictures changed: python -m benchmarks.flows."""
    assert {path.name for path in FOLDER.glob("*.svg")} == set(pictures)
    for name, svg in pictures.items():
        assert (FOLDER / name).read_bytes() == svg.encode(), name


def test_pictures_are_the_same_every_time(pictures: dict[str, str]) -> None:
    assert flows.pictures() == pictures


@pytest.mark.parametrize("protocol", TITLES)
def test_latencies_without_conflicts(pictures: dict[str, str], protocol: str) -> None:
    svg = pictures[f"{protocol}.svg"]
    leaders, followers = LATENCIES[protocol]
    leader = "leader" if followers else "process"
    assert delivered(svg, leader) == pytest.approx(leaders * 2, abs=0.01)
    assert delivered(svg, "follower") == pytest.approx(followers * 4, abs=0.01)
    said = f"after {leaders[0]:.0f}δ" + (f", followers after {followers[0]:.0f}δ" if followers else "")
    assert f"{said}</title>" in svg


@pytest.mark.parametrize("protocol", TITLES)
def test_latencies_of_a_convoy(protocol: str) -> None:
    run = flows.run(protocol, convoy=True)
    assert run.latency(leaders=True) == CONVOYS[protocol] - flows.JUST
    if not run.alone:
        assert run.latency(leaders=False) == CONVOYS[protocol] + 1 - flows.JUST


def test_pictures_of_a_set_have_one_scale(pictures: dict[str, str]) -> None:
    for names in ([f"{p}.svg" for p in TITLES], [f"{p}-convoy.svg" for p in TITLES]):
        ticks = {
            tuple(re.findall(r'<text x="([\d.]+)" [^>]*>(\d+)δ</text>', pictures[name])) for name in names
        }
        assert len(ticks) == 1
        assert [number for _, number in ticks.pop()][:8] == list("01234567")
        widths = [re.findall(r'<svg [^>]* width="(\d+)"', pictures[name]) for name in names]
        assert widths == [["1000"]] * len(names)


def test_pictures_show_ordering_only_and_all_of_it(pictures: dict[str, str]) -> None:
    shown = {name: set(re.findall(r">([^<>]+)</text>", svg)) for name, svg in pictures.items()}
    for texts in shown.values():
        assert "MULTICAST" in texts
        assert not texts & {"HEARTBEAT", "REPLY", "EXECUTED", "HINT", "lost", "one end not seen"}
    assert {"ACCEPT", "ACCEPT_ACK", "DELIVER", "leader"} <= shown["whitebox.svg"]
    consensus = {"2A lts", "2B lts", "2A clock", "2B clock", "PROPOSE decided", "DELIVER"}
    assert consensus <= shown["ftskeen.svg"]
    assert consensus | {"PROPOSE speculative"} <= shown["fastcast.svg"]
    assert not shown["skeen.svg"] & {"2A lts", "2B lts", "DELIVER"}
    assert "PROPOSE speculative" not in shown["ftskeen.svg"]


def test_no_label_hides_an_arrow_head(pictures: dict[str, str]) -> None:
    for name, svg in pictures.items():
        root = ElementTree.fromstring(svg)  # noqa: S314  # our own output
        labels = [rect.attrib for rect in root.iter(f"{SVG}rect") if rect.get("fill-opacity")]
        arrows = [group for group in root.iter(f"{SVG}g") if group.get("class") == "arrow"]
        heads = [head.attrib for arrow in arrows for head in arrow.iter(f"{SVG}path")]
        assert len(heads) == len(arrows) > 0, name
        for head in heads:
            x, y, turn = map(float, re.findall(r"-?[\d.]+", head["transform"]))
            back = 5 - float(head["d"][1:].split()[0])
            x, y = x - back * math.cos(math.radians(turn)), y - back * math.sin(math.radians(turn))
            for label in labels:
                left, top = float(label["x"]), float(label["y"])
                inside = left < x < left + float(label["width"]) and top < y < top + float(label["height"])
                assert not inside, name


def test_every_delivery_is_labelled(pictures: dict[str, str]) -> None:
    for name, svg in pictures.items():
        root = ElementTree.fromstring(svg)  # noqa: S314  # our own output
        texts = [element.text or "" for element in root.iter(f"{SVG}text")]
        labels = [text for text in texts if text.startswith("deliver ")]
        dots = [mark for mark in root.iter(f"{SVG}g") if mark.get("class") == "deliver"]
        assert sum(label.count("m") for label in labels) == len(dots) > 0, name
