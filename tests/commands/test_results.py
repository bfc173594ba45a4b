"""The results in the documentation: complete, and shown as they were measured."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import calls, complaint
from running import ROOT

DOCS, BENCH = ROOT / "docs", ROOT / "benchmarks"
RAW = DOCS / "results/cifar10"
LAB = sorted((DOCS / "lab").glob("*.md"))
PAGES = [DOCS / "results.md", *LAB]
MARKED = re.compile(r"<!-- ([a-z0-9 ]+) -->\n(.*?)\n<!-- end \1 -->", re.DOTALL)
DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?:\.\d+)?")


def made(script: str, *args: object) -> str:
    """Run a script that makes tables; what it says on stderr."""
    command = [sys.executable, str(BENCH / script), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_the_pages_show_the_raw_results(tmp_path: Path) -> None:
    """Empty every generated table and make it again: the pages come back as they are."""
    copies = [Path(shutil.copy(page, tmp_path)) for page in PAGES]
    for copy in copies:
        copy.write_text(MARKED.sub(r"<!-- \1 -->\n<!-- end \1 -->", copy.read_text()))
    digits, compared = tmp_path / "digits.md", DOCS / "results/digits/compare.json"
    assert made("cifar10/tables.py", RAW, *copies) == ""
    assert made("tables.py", compared, "--into", digits, "digits") == ""
    assert made("tables.py", compared, "--brief", "--into", copies[0], "digits brief") == ""
    assert [copy.read_text() for copy in copies] == [page.read_text() for page in PAGES]


def test_the_lab_has_every_generated_table() -> None:
    """All tables of the raw results, each on one page of the lab."""
    found = [name for page in LAB for name, _ in MARKED.findall(page.read_text())]
    parts = ["resnet20", "resnet56", "best", "zeta", "tau", "spread", "candidates", "latency"]
    parts.append("repaired")
    assert sorted(found) == sorted(["digits", *(f"cifar10 {part}" for part in parts)])


def test_figures_in_prose_are_in_the_record() -> None:
    """Each decimal typed by hand in results.md is in a generated table or in the lab."""
    text = (DOCS / "results.md").read_text()
    generated = " ".join(body for _, body in MARKED.findall(text))
    record = " ".join([generated, *(page.read_text() for page in LAB)])
    written = re.sub(r"^```sh\n.*?^```", "", MARKED.sub("", text), flags=re.DOTALL | re.MULTILINE)
    assert len(DECIMAL.findall(written)) > 25
    assert set(DECIMAL.findall(written)) - set(DECIMAL.findall(record)) == set()


def test_commands_are_those_of_the_raw_results() -> None:
    """The headline's commands are in the raw files, or in the lab where a file has none."""
    typed = [["legr", *args] for args in calls(DOCS / "results.md")]
    for name in ("resnet56/compare.json", "resnet20/seed0/compare.json"):
        assert shlex.split(json.loads((RAW / name).read_text())["command"]) in typed
    record = calls(DOCS / "lab/cifar10.md")
    first = [args for args in calls(DOCS / "results.md") if args[0] not in ("bench", "compare")]
    assert [args[0] for args in first] == ["learn", "prune", "finetune"]
    assert all(args in record for args in first)


def test_the_comparison_has_the_measured_accuracy() -> None:
    dense = json.loads((RAW / "resnet56/compare.json").read_text())["dense"]["accuracy"]
    pruned = json.loads((RAW / "best/best-tuned.json").read_text())["test"]["accuracy"]
    row = f"| {100 * dense:.2f} → {100 * pruned:.2f} % | 53 % |"
    assert row in (DOCS / "comparison.md").read_text()


@pytest.mark.parametrize("page", LAB, ids=lambda page: page.name)
def test_every_command_line_of_the_lab_parses(page: Path) -> None:
    assert [(shlex.join(args), complaint(args)) for args in calls(page) if complaint(args)] == []


def driven(folder: Path, status: int, *stages: str) -> tuple[int, list[list[str]]]:
    """The driver with a `legr` that does nothing: how it ends, and what it would have run."""
    (folder / "legr").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "legr").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    script = [
        sys.executable,
        str(BENCH / "cifar10/run.py"),
        "weights",
        "images",
        "results",
        *stages,
    ]
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
