"""The Java that is chosen, and the error if none can run Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wbkv_pipeline import java
from wbkv_pipeline.errors import PipelineError


def fake(home: Path, version: str, *modules: str) -> Path:
    """Make a Java that reports this version and these modules."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    listed = "\n".join(f"{module}@{version}" for module in ("java.base", *modules))
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*-version*) echo '    java.home = {home}' >&2\n"
        f"  echo '    java.specification.version = {version}' >&2;;\n"
        f"--list-modules) echo '{listed}';;\n"
        "*) exit 1;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    return home


def good(home: Path, version: str = "17") -> Path:
    return fake(home, version, "jdk.incubator.vector")


def find(tmp_path: Path, **environment: Path) -> str:
    found = java.find({name: str(value) for name, value in environment.items()}, [f"{tmp_path}/jvm/*"])
    return str(Path(found.home).relative_to(tmp_path))


def test_java_home_is_first_then_the_path_then_the_usual_places(tmp_path: Path) -> None:
    good(tmp_path / "jvm/a-17")
    good(tmp_path / "jvm/b-21", "21")
    home, on_path = good(tmp_path / "home"), good(tmp_path / "path")
    assert find(tmp_path, JAVA_HOME=home, PATH=on_path / "bin") == "home"
    assert find(tmp_path, PATH=on_path / "bin") == "path"
    assert find(tmp_path, PATH=tmp_path) == "jvm/b-21"


def test_one_that_cannot_run_spark_is_passed_over(tmp_path: Path) -> None:
    old = fake(tmp_path / "old", "1.8")
    bare = fake(tmp_path / "bare", "21")
    good(tmp_path / "jvm/17")
    assert find(tmp_path, JAVA_HOME=old, PATH=bare / "bin") == "jvm/17"


def test_without_a_usable_one_a_line_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old, bare = fake(tmp_path / "old", "1.8"), fake(tmp_path / "bare", "21")
    with pytest.raises(PipelineError) as raised:
        find(tmp_path, JAVA_HOME=old, PATH=bare / "bin")
    assert str(raised.value) == (
        "Spark needs Java 17 or later with the module jdk.incubator.vector; found only "
        f"Java 8 in {old}, Java 21 without jdk.incubator.vector in {bare}: {java.HINT}"
    )
    assert "apt-get install openjdk-17-jre-headless" in java.HINT
    with pytest.raises(PipelineError, match=r"; found none: install one \(Debian"):
        find(tmp_path, JAVA_HOME=tmp_path / "nowhere", PATH=tmp_path)


def test_what_is_no_java_is_none(tmp_path: Path) -> None:
    program = fake(tmp_path / "home", "17") / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2; exit 1\n")
    assert java.examine(str(program)) is None
    program.write_bytes(b"\x7fELF but damaged")
    assert java.examine(str(program)) is None


def test_the_module_says_the_same_and_fails(tmp_path: Path) -> None:
    """What `make test` runs, with programs that are not ours to run hidden."""
    old = fake(tmp_path / "old", "11")
    code = (
        "import sys; from wbkv_pipeline import java\n"
        "java.find.__defaults__ = (java.find.__defaults__[0], ())\n"
        "sys.exit(java.main(['--install']))\n"
    )
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-c", code],
        env={**os.environ, "JAVA_HOME": str(old), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Spark needs Java 17")
    assert f"found only Java 11 in {old}: install one" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("user", [0, 1000])
def test_debians_package_is_installed_where_that_needs_no_password(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, does in {"apt-get": 'echo "apt-get $*"', "sudo": 'shift; "$@"', "true": ":"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    java.install()
    said = capfd.readouterr().err
    assert "apt-get --quiet=2 install --yes --no-install-recommends openjdk-17-jre-headless\n" in said
    (programs / "sudo").write_text("#!/bin/sh\nexit 1\n")
    java.install()
    assert ("apt-get" in capfd.readouterr().err) is (user == 0)


def test_nothing_is_installed_without_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it ran something"))
    java.install()
