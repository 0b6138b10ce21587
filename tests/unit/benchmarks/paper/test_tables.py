"""Ratios, verdicts and plots from results that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page import fill
from benchmarks.paper import claims
from benchmarks.paper.__main__ import PAGE, main
from benchmarks.paper.analysis import Measured, mean_ms, throughput
from benchmarks.paper.crashes import Crashes
from benchmarks.paper.curves import LONE, MODERATE
from benchmarks.paper.points import Results
from benchmarks.paper.tables import at_most_clients, everything, peaks, verdict, work
from tests.unit.benchmarks.paper import planted


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "results")
    planted.everything(found, MODERATE, LONE)
    return found


def row(table: str, first: str) -> list[str]:
    """The cells of the row that begins so."""
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_peak_is_the_best_median_over_numbers_of_clients(results: Results) -> None:
    lan = Measured.read(results, "lan")
    best = lan.peak("whitebox", 2)
    assert best is not None
    assert best.throughput == pytest.approx(200 / 2 * 4 * 1.1)
    assert best.clients == 10
    table = peaks(lan)
    assert row(table, "2") == ["2", "440 (10)", "220 (10)", "110 (10)", "2.00", "4.00"]
    assert row(table, "mean of ratios")[-2:] == ["**2.00**", "**4.00**"]


def test_means_of_ratios_and_ratios_of_means_differ(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for dest, ours, theirs in ((1, 1000.0, 1000.0), (10, 30.0, 10.0)):
        turns = [planted.turn("whitebox", 0, ours, 1.0), planted.turn("fastcast", 0, theirs, 1.0)]
        planted.point(results, "lan", dest, 10, turns)
    table = peaks(Measured.read(results, "lan"))
    assert row(table, "mean of ratios")[-1] == "**2.00**"
    assert row(table, "ratio of means")[-1] == "1.02"


def test_ratios_are_between_neighbours_in_time(tmp_path: Path) -> None:
    """A machine that becomes slower from round to round does not change them."""
    results = Results(tmp_path)
    turns = [
        planted.turn(protocol, number, speed / (number + 1), speed)
        for number in range(3)
        for protocol, speed in (("whitebox", 300.0), ("fastcast", 100.0 + 50 * number))
    ]
    planted.point(results, "lan", 2, 10, turns)
    lan = Measured.read(results, "lan")
    found = lan.ratio("whitebox", "fastcast", 2, 10, throughput)
    assert found is not None
    assert (found.median, found.least, found.most) == (2.0, 1.5, 3.0)
    lower = lan.ratio("fastcast", "whitebox", 2, 10, mean_ms)
    assert lower is not None
    assert lower.median == 0.5
    assert lan.ratio("whitebox", "ftskeen", 2, 10, throughput) is None


def test_the_papers_numbers_stand_beside_ours(results: Results) -> None:
    lan = Measured.read(results, "lan")
    table = at_most_clients(lan, "LAN", claims.PAPER_LAN)
    assert "at 1,000 clients" in table.splitlines()[0]
    assert row(table, "mean of ratios")[1:] == ["2.00", "2.00", "4.00", "4.00"]
    assert row(table, "the paper")[1] == "1.2 - 3.5, mean 2.15, at 1,000 clients"


def test_work_is_divided_by_protocol_messages(results: Results) -> None:
    table = work(Measured.read(results, "lan"))
    assert row(table, "2 | white-box")[2:] == ["700 µs", "26", "26.9 µs", "1,234", "2.50"]
    assert row(table, "2 | FT-Skeen")[2:] == ["700 µs", "24", "29.2 µs", "1,234", "2.50"]


def verdict_of(results: Results) -> tuple[list[str], list[str]]:
    """The lines of the verdict, and which goals are reached."""
    lan, wan, together = (Measured.read(results, name) for name in ("lan", "wan", "together"))
    lines = verdict(lan, wan, together, Crashes.read(results)).splitlines()
    return lines, [line.split("|")[-2].strip() for line in lines[4:]]


def test_the_verdict_is_by_our_goals(results: Results) -> None:
    lines, reached = verdict_of(results)
    # FT-Skeen 4 times, FastCast 2 times, in the LAN too; leaders within 0.9 s; one of three never came back.
    assert reached == ["yes", "yes", "yes", "yes", "yes", "yes", "in the median"]
    assert "median 1.50 s, worst of 3 never" in lines[-1]


def test_a_goal_that_is_missed_is_not_reached(tmp_path: Path) -> None:
    results = Results(tmp_path)
    turns = [planted.turn("whitebox", 0, 149.0, 1.0), planted.turn("fastcast", 0, 100.0, 1.0)]
    planted.point(results, "lan", 2, 10, turns)
    planted.crash(results, "lan", 1, 1.2, 2.5)
    assert verdict_of(results)[1] == ["-", "-", "-", "-", "no", "no", "no"]


def test_failures_are_shown_and_leave_gaps(tmp_path: Path) -> None:
    results = Results(tmp_path)
    gone = {"protocol": "fastcast", "round": 0, "failed": "ClusterError: n2 has\nended"}
    planted.point(results, "lan", 2, 10, [planted.turn("whitebox", 0, 10.0, 1.0), gone])
    text = everything(results)["made"]
    assert "FAILED lan dest02-clients0010: fastcast: ClusterError: n2 has ended" in text
    assert row(peaks(Measured.read(results, "lan")), "2") == ["2", "10 (10)"]
    planted.point(results, "lan", 4, 10, [planted.turn("fastcast", 0, 10.0, 1.0)])
    assert row(peaks(Measured.read(results, "lan")), "mean of ratios")[-1] == "**-**"


def test_all_tables_are_printed(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--folder", str(results.folder)]) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("**")]
    assert len(titles) == 13
    assert "- nothing failed" in out
    assert "| whitebox (3δ, at worst 5δ) | 1 | 4.00 (4.50) | 3.50 (4.00) | 5.00 (5.50) | - |" in out
    assert "| WAN | 3 | 0.60 (0.90) | 1.50 (never) |" in out
    alone = row(out[out.index("WAN: mean latency of 3 clients") :].split("\n**")[0], "1")
    assert alone[1:4] == ["124", "25", "124"]


def test_the_page_takes_every_table(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    for _ in range(2):  # the second time, they replace themselves
        assert main(["tables", "--folder", str(results.folder), "--write", "--page", str(page)]) == 0
        text = page.read_text()
        for table in everything(results).values():
            assert text.count(f"\n{table}\n") == 1
    assert text.count("<!-- end of table -->") == PAGE.read_text().count("<!-- end of table -->") == 13
    with pytest.raises(ValueError, match="no comments for the table 'nonsense'"):
        fill(text, {"nonsense": "| |"})


def test_plots_are_written(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    images = tmp_path / "images"
    assert main(["plots", "--folder", str(results.folder), "--images", str(images)]) == 0
    names = ["evaluation-convoy", "evaluation-lan", "evaluation-recovery-wan", "evaluation-wan"]
    assert sorted(path.name for path in images.iterdir()) == sorted(
        f"{name}.{ending}" for name in names for ending in ("png", "svg")
    )
    for path in images.iterdir():
        assert 1_000 < path.stat().st_size < 150_000, path.name
    drawn = (images / "evaluation-wan.svg").read_text()
    assert "WbCast" in drawn
    assert f"boxed: {MODERATE}" in drawn
    assert "5δ" in (images / "evaluation-convoy.svg").read_text()
