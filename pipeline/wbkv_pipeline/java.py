"""Finds the Java that runs Spark.

Spark needs Java 17 or later with the module `jdk.incubator.vector`, which pip cannot install. The search
covers $JAVA_HOME, the PATH, and the usual folders (`PATTERNS`). `python -m wbkv_pipeline.java` prints what
it finds, or what is missing; with `--install` it installs Debian's package where that needs no password.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wbkv_pipeline.errors import PipelineError

OLDEST: Final = 17
MODULE: Final = "jdk.incubator.vector"
PACKAGE: Final = "openjdk-17-jre-headless"
PATTERNS: Final = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "C:/Program Files/Java/*",
    "C:/Program Files/Eclipse Adoptium/*",
    "C:/Program Files/Microsoft/jdk-*",
)
HINT: Final = (
    f"install one (Debian, Ubuntu: apt-get install {PACKAGE}; macOS: brew install openjdk@17; "
    "Windows: winget install EclipseAdoptium.Temurin.17.JRE), or set JAVA_HOME"
)
WAIT_S: Final = 60.0


@dataclass(frozen=True)
class Java:
    """An installed Java."""

    home: str
    version: int
    """For example 17; 8 for a Java that calls itself 1.8."""
    usable: bool

    def __str__(self) -> str:
        lacks = "" if self.usable or self.version < OLDEST else f" without {MODULE}"
        return f"Java {self.version}{lacks} in {self.home}"


def find(environment: Mapping[str, str] = os.environ, patterns: Sequence[str] = PATTERNS) -> Java:
    """Return the first Java that can run Spark. Raises `PipelineError` if there is none."""
    unusable = []
    for program in _programs(environment, patterns):
        java = examine(program)
        if java is not None and java.usable:
            return java
        if java is not None and java not in unusable:
            unusable.append(java)
    found = f"found only {', '.join(map(str, unusable))}" if unusable else "found none"
    raise PipelineError(f"Spark needs Java {OLDEST} or later with the module {MODULE}; {found}: {HINT}")


def _programs(environment: Mapping[str, str], patterns: Iterable[str]) -> Iterator[str]:
    name = "java.exe" if os.name == "nt" else "java"
    if environment.get("JAVA_HOME"):
        yield str(Path(environment["JAVA_HOME"], "bin", name))
    on_path = shutil.which(name, path=environment.get("PATH", ""))
    if on_path is not None:
        yield on_path
    for pattern in patterns:
        top = Path(pattern).anchor
        for home in sorted(Path(top).glob(pattern[len(top) :]), reverse=True):
            yield str(home / "bin" / name)


def examine(program: str) -> Java | None:
    """Run a program to find out which Java it is; None if it is not a Java."""
    said = _run([program, "-XshowSettings:properties", "-version"])
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said or "")
    if said is None or version is None:
        return None
    home = re.search(r"java\.home = (.+)", said)
    usable = False
    if int(version[1]) >= OLDEST:
        modules = _run([program, "--list-modules"])
        usable = modules is not None and f"{MODULE}@" in modules
    return Java(home[1].strip() if home else str(Path(program).parents[1]), int(version[1]), usable)


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a Java of the user's
            command, capture_output=True, text=True, errors="replace", timeout=WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


def use(environment: dict[str, str] | os._Environ[str] = os.environ) -> Java:
    """Find a Java, and set JAVA_HOME so that Spark runs on it."""
    java = find(environment)
    environment["JAVA_HOME"] = java.home
    return java


def install() -> None:
    """Install Debian's package, if that needs no password."""
    apt = shutil.which("apt-get")
    if apt is None:
        return
    before = []
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        if sudo is None or _run([sudo, "-n", "true"]) is None:
            return
        before = [sudo, "-n"]
    sys.stderr.write(f"installing {PACKAGE}, once: Spark needs Java\n")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "--yes", "--no-install-recommends", PACKAGE]):
        # apt-get reports its own errors; the next search then finds no Java.
        command = [*before, apt, "--quiet=2", *step]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False)  # noqa: S603 - fixed words


def main(argv: Sequence[str] | None = None) -> int:
    """Print the Java that Spark would use. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wbkv_pipeline.java", description=find.__doc__)
    parser.add_argument("--install", action="store_true", help=f"install {PACKAGE} if there is none")
    arguments = parser.parse_args(argv)
    try:
        try:
            java = find()
        except PipelineError:
            if not arguments.install:
                raise
            install()
            java = find()
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
