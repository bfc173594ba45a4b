"""The CIFAR-10 results of the documentation: complete, and shown as they were measured."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import complaint
from running import ROOT

RAW, BENCH = ROOT / "docs/results/cifar10", ROOT / "benchmarks/cifar10"


def test_the_page_shows_the_raw_results(tmp_path: Path) -> None:
    page = shutil.copy(ROOT / "docs/results.md", tmp_path)
    script = [sys.executable, str(BENCH / "tables.py"), str(RAW), str(page)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert Path(page).read_text() == (ROOT / "docs/results.md").read_text()


def driven(folder: Path, status: int, *stages: str) -> tuple[int, list[list[str]]]:
    """The driver with a `legr` that does nothing: how it ends, and what it would have run."""
    (folder / "legr").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "legr").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    script = [sys.executable, str(BENCH / "run.py"), "weights", "images", "results", *stages]
    done = subprocess.run([*script, "--a57", "."], cwd=folder, env=env, capture_output=True)
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("+ legr ")]
    commands = [shlex.split(line)[2:] for line in lines]
    assert [complaint(words) for words in commands if complaint(words)] == []
    return done.returncode, commands


def test_the_driver_finds_everything_done(tmp_path: Path) -> None:
    """Nothing is left to learn, tune or time; networks, which are not kept, would be cut again."""
    shutil.copytree(RAW, tmp_path / "results")
    status, commands = driven(tmp_path, 0)
    assert status == 0
    assert {words[0] for words in commands} == {"prune"}


@pytest.mark.parametrize(
    ("stage", "first"),
    [
        ("resnet20-2", "compare"),
        ("zeta80", "compare"),
        ("tau", "learn"),
        ("candidates", "learn"),
        ("resnet56", "compare"),
        ("best", "learn"),
        ("latency", "prune"),
    ],
)
def test_a_stage_stops_at_what_fails(stage: str, first: str, tmp_path: Path) -> None:
    status, commands = driven(tmp_path, 3, stage)
    assert status != 0
    assert [words[0] for words in commands] == [first]
