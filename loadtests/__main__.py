"""`python -m loadtests`: load tests of a cluster, checked and reported."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import wbkv

from loadtests import running
from loadtests.checking import toml_file
from loadtests.errors import LoadTestError
from loadtests.running import Run, RunOptions, ScenarioResult, say
from loadtests.scenario import known, read_scenario
from loadtests.shape import FOLDER as SHAPES

WEB = "127.0.0.1:8089"
EPILOG = """\
exit status:
  0    done, and all checks passed
  1    a check failed, or verify has found a violation, or more requests failed than --max-failures allows
  2    bad usage, or a cluster that cannot be used
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usual = RunOptions(scenarios=(), output=Path())
    found = argparse.ArgumentParser(
        prog="python -m loadtests",
        description="Put a cluster under load by Locust, check that nothing was lost, and report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="names (see --list), or files that end with .toml")
    add("--list", action="store_true", help="list scenarios and shapes")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="a parameter, or mix.OPERATION=WEIGHT, of all scenarios")  # fmt: skip
    load = found.add_argument_group("load")
    add = load.add_argument
    add("--users", type=_whole, default=usual.users, help=f"most concurrent users ({usual.users})")
    add("--spawn-rate", type=_positive, metavar="RATE", help="users started per second (all in one second)")
    add("--seconds", type=_whole, default=usual.seconds, help=f"length of each scenario ({usual.seconds})")
    add("--processes", type=_whole, default=1, help="Locust's processes, which share the users (1)")
    add("--shape", help="how the number of users changes: a name (see --list), or a file")
    add("--web", nargs="?", const=WEB, metavar="HOST:PORT",
        help=f"serve Locust's page ({WEB}), to start and stop by hand")  # fmt: skip
    cluster = found.add_argument_group("cluster")
    add = cluster.add_argument
    add("--endpoints", metavar="HOST:PORT,...", help="a running cluster, where keys under loadtest/ stay "
        "(a new cluster, which is removed)")  # fmt: skip
    add("--nodes", type=_whole, default=usual.nodes, help=f"nodes of a new cluster ({usual.nodes})")
    add("--partitions", type=_whole, default=usual.partitions, help=f"its partitions ({usual.partitions})")
    add("--kill-after", type=_positive, metavar="SECONDS", help="kill a leader then; restart it 5 s later")
    out = found.add_argument_group("results")
    add = out.add_argument
    add("--output", type=Path, metavar="DIR", help="a folder for all results (build/loadtests/TIME)")
    add("--traces", type=Path, metavar="DIR", help="a folder for the traces (OUTPUT/traces)")
    add("--no-traces", action="store_true", help="record no traces")
    add("--protocol", metavar="NAME", help="the cluster's protocol, for traces (whitebox if new)")
    add(
        "--report",
        nargs="?",
        const="",
        metavar="DIR",
        help="write a report on the traces (OUTPUT/report); needs Java",
    )
    add("--verify", action="store_true", help="verify the traces; needs Java")
    add("--max-failures", type=_percent, default=usual.max_failures, metavar="PERCENT",
        help="exit with 1 if more requests fail (100: failures are only counted)")  # fmt: skip
    return found


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1,000,000")
    return int(text)


def _positive(text: str) -> float:
    return _number(text, lambda value: 0 < value < 1e6, "above 0 and below 1,000,000")


def _percent(text: str) -> float:
    return _number(text, lambda value: 0 <= value <= 100, "from 0 to 100")


def _number(text: str, valid: Callable[[float], bool], range_: str) -> float:
    with contextlib.suppress(ValueError):
        if valid(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number {range_}")


def _options(found: argparse.ArgumentParser, given: argparse.Namespace) -> RunOptions:
    """Return the options of the command line. Ends with an error if they contradict each other."""
    if given.web and len(given.scenarios) > 1:
        found.error("--web needs exactly one scenario")
    if given.web and not _is_address(given.web):
        found.error(f"--web {given.web} is not of the form HOST:PORT")
    if given.endpoints and given.kill_after is not None:
        found.error("--kill-after needs a new cluster: it cannot kill nodes of --endpoints")
    if given.no_traces and (given.verify or given.report is not None or given.traces):
        found.error("--no-traces excludes --traces, --verify and --report")
    output = given.output or Path("build", "loadtests", time.strftime("%Y%m%d-%H%M%S"))
    return RunOptions(
        scenarios=given.scenarios,
        overrides=given.overrides,
        shape=given.shape,
        users=given.users,
        spawn_rate=given.spawn_rate or given.users,
        seconds=given.seconds,
        processes=given.processes,
        endpoints=given.endpoints.split(",") if given.endpoints else (),
        nodes=given.nodes,
        partitions=given.partitions,
        kill_after=given.kill_after,
        web=given.web,
        output=output,
        traces=None if given.no_traces else given.traces or output / "traces",
        protocol=given.protocol,
        max_failures=given.max_failures,
    )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load tests, and return the exit status."""
    found = parser()
    given = found.parse_args(argv)
    if given.list:
        _list()
        return 0
    if not given.scenarios:
        found.error(f"name one or more scenarios: {', '.join(known())}")
    options = _options(found, given)
    try:
        good = _run(Run(options), options)
        traces = str(options.traces)
        if given.verify:
            good = _job(running.pipeline("verify", traces)) and good
        if given.report is not None:
            report = given.report or str(options.output / "report")
            good = _job(running.pipeline("report", traces, "--output", report)) and good
    except (LoadTestError, wbkv.Error, OSError, ValueError) as error:
        print(f"python -m loadtests: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if good else 1


def _list() -> None:
    for name in known():
        found = read_scenario(name)
        print(f"{name:10} {found.about} ({', '.join(found.mix)})")
    print("shapes:")
    for path in sorted(SHAPES.glob("*.toml")):
        print(f"{path.stem:10} {toml_file(path).get('about', '')}")


def _run(run: Run, options: RunOptions) -> bool:
    options.output.mkdir(parents=True, exist_ok=True)
    good = True
    with contextlib.closing(run.results()) as results:
        for result in results:
            _print_result(result)
            good = good and not result.wrong
    if options.endpoints:
        say(f"the keys stay in the cluster; to remove them: wbkv del --prefix {run.prefix}")
    if options.traces is not None:
        say(f"traces: {options.traces}")
    return good


def _print_result(result: ScenarioResult) -> None:
    """Print the figures of a scenario, and its failed checks."""
    print(
        f"{'operation':24}{'requests':>9}{'failed':>8}{'/s':>9}{'mean':>8}{'p50':>7}{'p95':>7}{'p99':>7}  ms"
    )
    for row in result.summary:
        figures = "".join(f"{row[name]:>7.0f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        print(f"{row['name']:24}{row['requests']:>9}{row['failures']:>8}{row['per_second']:>9.1f}"
              f"{row['mean_ms']:>8.1f}{figures}")  # fmt: skip
    tally = result.tally
    say(
        f"{result.scenario.name}: {tally.ok.total()} done, {tally.refused.total()} refused, "
        f"{tally.failed.total()} failed, {tally.unknown.total()} with an unknown outcome; "
        f"{result.cpu_s / max(result.requests, 1) * 1e6:.0f} µs of Locust's CPU for each"
    )
    for kind, count in tally.errors.most_common(20):
        say(f"{result.scenario.name}: {count} of {kind}")
    for wrong in result.wrong[:20]:
        say(f"{result.scenario.name}: WRONG: {wrong}")
    if not result.wrong:
        say(f"{result.scenario.name}: all checks passed")


def _job(status: int) -> bool:
    if status > 1:
        raise LoadTestError(f"the job failed with status {status}")
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
