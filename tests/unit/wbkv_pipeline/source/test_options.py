from __future__ import annotations

import pytest
from wbkv import EVERYTHING, KeyRange
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.options import parse, reference

from tests.tree import ROOT


def test_nothing_given_means_everything() -> None:
    options = parse({})
    assert options.keys == EVERYTHING
    assert (options.revision, options.splits, options.snapshot_ttl_s) == (0, 0, 600.0)
    assert (options.batch_rows, options.starting_revision, options.max_batch_s) == (500, "latest", 0.0)


def test_names_are_not_case_sensitive() -> None:
    given = {"batchrows": "7", "INFLIGHT": "3", "startingRevision": "Earliest", "rewrite": "TRUE"}
    options = parse({**given, "PUSHFILTERS": "true"})
    assert (options.batch_rows, options.in_flight, options.starting_revision) == (7, 3, "earliest")
    assert options.rewrite
    assert options.push_filters
    assert not parse({}).push_filters


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"prefix": "a/"}, KeyRange(b"a/", b"a0")),
        ({"prefixHex": "ff"}, KeyRange(b"\xff", None)),
        ({"start": "é"}, KeyRange("é".encode(), None)),
        ({"startHex": "00", "end": "b"}, KeyRange(b"\0", b"b")),
        ({"end": "b"}, KeyRange(b"", b"b")),
    ],
)
def test_keys_as_text_or_bytes(given: dict[str, str], keys: KeyRange) -> None:
    assert parse(given).keys == keys


def test_the_drivers_environment_goes_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WBKV_ENDPOINTS", "there:1")
    assert parse({}).endpoints == "there:1"
    assert parse({"endpoints": "here:2"}).endpoints == "here:2"
    monkeypatch.delenv("WBKV_ENDPOINTS")
    assert parse({}).endpoints is None


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"prefx": "a"}, "there is no option prefx: did you mean prefix?"),
        ({"zzz": "a"}, "there is no option zzz: there are endpoints, prefix,"),
        ({"batchRows": "0"}, "the option batchRows must be a whole number, 1 or more, not '0'"),
        ({"splits": "two"}, "the option splits must be a whole number, 1 or more, not 'two'"),
        ({"revision": "-1"}, "the option revision must be a whole number"),
        ({"snapshotTtl": "nan"}, "the option snapshotTtl must be a number of seconds up to a day, not 'nan'"),
        ({"snapshotTtl": "1e9"}, "the option snapshotTtl must be a number of seconds up to a day"),
        ({"prefixHex": "xy"}, "the option prefixHex must be hexadecimal digits, not 'xy'"),
        ({"prefix": "a", "prefixHex": "61"}, "give the option prefix or prefixHex, not both"),
        ({"prefix": "a", "start": "b"}, "give the option prefix, or start and end, not both"),
        ({"start": "b", "end": "a"}, "the options start and end: the range from b'b' to b'a' is empty"),
        ({"startingRevision": "now"}, "must be latest, earliest or a revision, not 'now'"),
        ({"rewrite": "yes"}, "the option rewrite must be true or false, not 'yes'"),
        ({"jobId": " "}, "the option jobId must be a name, not ' '"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], line: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse(given)
    assert str(raised.value).startswith("wbkv: ")
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_of_another_use_are_refused() -> None:
    options = parse({"batchRows": "7"})
    assert options.fits("write")
    assert not options.fits("read")
    options.check_use("write")
    with pytest.raises(
        PipelineError, match="the option batchRows is for write and writeStream, not for read"
    ):
        options.check_use("read")


def test_the_reference_has_the_table_of_options() -> None:
    page = ROOT / "docs" / "reference" / "data-source.md"
    assert reference() in page.read_text()
