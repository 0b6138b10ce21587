from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from pyspark.sql.types import StructType
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.reporting import Report, ReportOptions, ReportTable, console, warnings
from wbkv_pipeline.reporting.drawing import Plot, draw
from wbkv_pipeline.reporting.page import page
from wbkv_pipeline.reporting.recovery import FIGURES, Crash
from wbkv_pipeline.reporting.report import MOST_BINS, MOST_BINS_IN_ALL, bin_width
from wbkv_pipeline.reporting.style import protocol_styles

S = 1_000_000
T0 = 1_790_000_000 * S
EVIL = "<script>alert(1)</script> & co"
FIGURE = {"mean_ms": 2.0, "stddev_ms": 1.0, "p10_ms": 1.0, "p50_ms": 1.5, "p90_ms": 3.0, "p99_ms": 4.0}


def measurement(scenario: str, protocol: str, clients: int, **more: Any) -> dict[str, Any]:
    return {"scenario": scenario, "protocol": protocol, "clients": clients, **more}


def figures(throughput: float) -> dict[str, Any]:
    counts = {"samples": 5_000, "completed": 5_000, "not_ok": 3, "stretches": 1, "seconds": 10.0}
    return {**FIGURE, **counts, "p999_ms": 5.0, "max_ms": 9.0, "throughput": throughput}


def made(*, crash: bool = True, scenario: str = "LAN") -> Report:
    """A small report, as if measured: two protocols, two numbers of clients, two numbers of destinations."""
    who = [(protocol, clients) for protocol in ("fastcast", "whitebox") for clients in (1, 10)]
    scenarios = [measurement(scenario, *each, **figures(100.0 * each[1])) for each in who]
    points = [{**row, "destinations": count} for row in scenarios for count in (1, 2)]
    bins = [
        measurement(
            scenario,
            *each,
            stretch=1,
            bin=index,
            at_s=0.3 * index,
            seconds=0.3,
            completed=30,
            throughput=100.0 + index,
            p50_ms=None if index == 4 else 1.5,
            p99_ms=None if index == 4 else 4.0,
        )
        for each in who
        for index in range(10)
    ]
    begin = {each: T0 + index * 20 * S for index, each in enumerate(who)}
    times = [
        measurement(scenario, *each, stretch=1, begin_us=begin[each], end_us=begin[each] + 10 * S)
        for each in who
    ]
    lines = [
        {"crash": 1, "series": series, "bin": index, "at_s": 0.3 * index, "throughput": 100.0, "mean_ms": 2.0}
        for series in ("affected", "clients", "others")
        for index in range(-5, 20)
    ]
    derived = {
        "crash": 1,
        "series": "affected",
        "before": 100.0,
        "usual_ms": 2.0,
        "lowest": 0.0,
        "worst_ms": 6_123.0,
        "leader_s": 2.5,
        "recovered_s": 6.0,
        "cleared_s": 3.5,
        "unsteady": False,
    }
    ratio = {"panels": 2, "throughput_ratio": 2.15, "throughput_ratio_min": 1.2, "throughput_ratio_max": 3.5}
    overall = {**ratio, "latency_ratio": 2.0, "latency_ratio_min": 1.0, "latency_ratio_max": 3.0}
    tables = {
        "scenarios": scenarios,
        "destinations": points,
        "ratios_over_panels": [
            {"scenario": scenario, "clients": 10, "protocol": "whitebox", "against": "fastcast", **overall}
        ],
        "over_time": bins,
        "outcomes": [
            measurement(scenario, "whitebox", 10, outcome="ok", error="", count=990, share=0.99),
            measurement(scenario, "whitebox", 10, outcome="failed", error=EVIL, count=10, share=0.01),
        ],
        "stretches": times,
        "timeline": lines if crash else [],
        "recovery": [derived] if crash else [],
    }
    report = Report(
        options=ReportOptions(title=f"Report {EVIL}"),
        overview={"requests": 40_000, "ok": 39_990, "runs": 4, "untimed": 0, "backwards": 0},
        tables={name: ReportTable(StructType([]), rows) for name, rows in tables.items()},
        marks=[{"at_us": T0 + 5 * S, "name": "crash", "node": "n1", "group": 3, "scenario": ""}]
        if crash
        else [],
        crashes=[Crash(1, T0 + 5 * S, T0 + 7_500_000, ("n1",), (3,), T0, T0 + 10 * S)] if crash else [],
        bin_s=0.3,
        crash_bin_s=0.3,
        exact=True,
        warnings=[],
    )
    return replace(report, warnings=warnings.find_warnings(report))


class Reader(HTMLParser):
    """What of a page could reach out, and its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")


@pytest.fixture(scope="module")
def drawn() -> dict[str, Plot]:
    return draw(made())


@pytest.fixture(scope="module")
def text(drawn: dict[str, Plot]) -> str:
    return page(made(), drawn)


def test_a_page_needs_nothing_from_elsewhere(text: str) -> None:
    seen = Reader(text)
    assert seen.tags.isdisjoint({"script", "link", "iframe", "object", "img"})
    assert all(link.startswith("#") for link in seen.links)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_plots_on_a_page_do_not_share_ids_and_their_references_hold(text: str) -> None:
    seen = Reader(text)
    assert len(seen.ids) == len(set(seen.ids))
    used = {*re.findall(r"url\(#([^)]+)\)", text), *(link[1:] for link in seen.links)}
    assert used
    assert used <= set(seen.ids)


def test_what_clients_name_is_shown_as_text(text: str) -> None:
    assert "<script>" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; co") >= 3  # twice the title, and the error


def test_a_page_says_what_was_measured(text: str) -> None:
    for part in ("40,000 requests", "4 client processes", "in 4 measurements", "Percentiles: exact"):
        assert part in text
    assert text.count("<svg") == 4  # percentiles, curves, over time, recovery
    assert "2.15 (1.20 to 3.50)" in text
    assert "<td>2.50</td><td>6.00</td><td>3.50</td>" in text
    assert "Requests that did not succeed: LAN / whitebox / 10 clients (1.00%)" in text


def test_plots_take_the_ink_of_the_page(text: str) -> None:
    assert "currentColor" in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_says_what_it_has_no_data_for() -> None:
    report = made(crash=False)
    rows = [{**row, "clients": 0} for row in report.rows("destinations")]
    without = replace(report, tables={**report.tables, "destinations": ReportTable(StructType([]), rows)})
    drawn = draw(without)
    assert set(drawn) == {"percentiles", "over-time-lan"}
    text = page(without, drawn)
    assert "No recovery time-line: the traces have no marks." in text
    assert "No curves" in text


def test_the_same_report_gives_the_same_bytes(drawn: dict[str, Plot], text: str) -> None:
    again = draw(made())
    assert again == drawn
    assert page(made(), again) == text


def test_plots_have_no_date_and_no_version(drawn: dict[str, Plot]) -> None:
    for plot in drawn.values():
        assert "<dc:date>" not in plot.svg
        assert b"Matplotlib" not in plot.png


@pytest.mark.parametrize("scenario", ["", "$x^$ _{ ../../etc"])
def test_any_scenario_can_be_drawn(scenario: str) -> None:
    drawn = draw(made(scenario=scenario))
    assert len(drawn) == 4
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in drawn)


def test_protocols_of_the_paper_keep_their_colours_whatever_else_is_there() -> None:
    few, many = protocol_styles(["whitebox"]), protocol_styles(["whitebox", "mine", "yours", "", "skeen"])
    assert few["whitebox"] == many["whitebox"]
    assert len({colour for colour, _ in many.values()}) == 5
    assert len({marker for _, marker in many.values()}) == 5


@pytest.mark.parametrize(
    ("wanted", "lengths", "width"),
    [
        (0.3, [10 * S], 300_000),
        (0.3, [], 300_000),
        (0.3, [3_600 * S], 3_600_000),
        (0.001, [3_600 * S] * 100, 7_200_000),
    ],
)
def test_bins_are_made_wider_until_they_are_few_enough(wanted: float, lengths: list[int], width: int) -> None:
    found = bin_width(wanted, lengths)
    assert found == width
    assert all(length <= found * MOST_BINS for length in lengths)
    assert sum(lengths) <= found * MOST_BINS_IN_ALL


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bin_s": 0.0}, "--bin 0: "),
        ({"bin_s": float("nan")}, "--bin nan: "),
        ({"skip_s": -1.0}, "--skip -1: "),
        ({"skip_s": float("inf")}, "--skip inf: "),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, float], said: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(said)):
        ReportOptions(**options)  # type: ignore[arg-type] # only numbers


def warned(**changes: Any) -> str:
    return "\n".join(warnings.find_warnings(replace(made(), **changes)))


def test_clocks_that_run_backwards_cause_a_warning() -> None:
    overview = {"requests": 10, "ok": 5, "runs": 1, "untimed": 2, "backwards": 3}
    said = warned(overview=overview)
    assert "3 requests end before they start" in said
    assert "2 requests have no start or no end" in said


def test_runs_that_overlap_cause_a_warning_but_scenarios_may_mix() -> None:
    report = made()
    times = report.rows("stretches")
    moved = [{**row, "begin_us": T0, "end_us": T0 + S} for row in times[:2]]
    mixed = [{**times[0], "scenario": name} for name in ("a", "b")]
    for rows, expected in ((moved, True), (mixed, False), (times, False)):
        tables = {**report.tables, "stretches": ReportTable(StructType([]), rows)}
        assert ("Runs overlap in time" in warned(tables=tables)) is expected


def test_few_samples_marks_outside_and_coarser_bins_cause_warnings() -> None:
    report = made()
    rows = [{**row, "samples": 12} for row in report.rows("scenarios")]
    tables = {**report.tables, "scenarios": ReportTable(StructType([]), rows)}
    marks = [{"at_us": T0 - 5 * S, "name": "leader", "node": None, "group": None, "scenario": None}]
    crash = replace(report.crashes[0], leader_us=None)
    said = warned(tables=tables, marks=marks, bin_s=0.6, exact=False, crashes=[crash])
    assert "Few samples" in said
    assert "LAN / fastcast / 1 client (12)" in said
    assert "leader at 2026-09-21 14:13:15 UTC" in said
    assert "some have 0.6 s" in said
    assert "one request in 10,000" in said
    assert "No mark of a new leader: crash 1" in said


def test_the_gist_for_a_terminal() -> None:
    said = list(console.lines(made(), "file:/x/report.html"))
    assert said[1].split() == [
        "LAN",
        "/",
        "fastcast",
        "/",
        "1",
        "client",
        "100",
        "2.00",
        "1.50",
        "4.00",
        "5.00",
        "3",
    ]
    assert "crash 1: new leader after 2.50 s, back at 90% of the throughput after 6.00 s" in said
    assert said[-1] == "page: file:/x/report.html"


def test_a_table_keeps_its_types_as_parquet() -> None:
    import io

    import pyarrow.parquet as pq

    rows = [dict.fromkeys(FIGURES.names) | {"crash": 1, "before": 2.0}]
    read = pq.read_table(io.BytesIO(ReportTable(FIGURES, rows).parquet()))
    assert read.schema.field("recovered_s").type == "double"
    assert read.to_pylist() == rows
