"""What the documentation tells users to type: it runs, or at least it parses."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import arguments, calls, complaint, lines, simple_commands
from running import ROOT, legr

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_parses(page: Path, capsys: pytest.CaptureFixture) -> None:
    wrong = [(shlex.join(args), complaint(args)) for args in calls(page) if complaint(args)]
    assert wrong == []


def test_wrong_command_lines_do_not_parse() -> None:
    fine = "A=1 legr prune net.pth --flops 0.5 --out x && .venv/bin/legr inspect x # as it is"
    first, second = (arguments(words) for words in simple_commands(fine))
    assert first == ["prune", "net.pth", "--flops", "0.5", "--out", "x"]
    assert second == ["inspect", "x"]
    assert complaint(first) is complaint(second) is None
    assert complaint(["prune", "…", "--flops", "0.5"]) is None
    assert "MissingParameter" in complaint(["prune", "net.pth", "--flops", "0.5"])
    assert "NoSuchOption" in complaint([*first, "--flop", "1"])
    assert "NoSuchOption" in complaint(["prune", "…", "--nothing"])
    assert complaint(["shrink", "x"]) == "no command shrink"
    assert complaint(["--nothing"]) == "no option --nothing"
    [there] = simple_commands("torchrun --nproc-per-node 4 -m legr_cli finetune x --amp")
    assert arguments(there) == ["finetune", "x", "--amp"]
    assert sum(len(calls(page)) for page in PAGES) > 60


@pytest.mark.slow
def test_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for line in lines(ROOT / "docs/quick-start.md") if line.startswith("legr ")]
    assert {command.split()[1] for command in commands} >= {
        "finetune",
        "inspect",
        "learn",
        "prune",
        "evaluate",
        "bench",
    }
    for command in commands:
        words = shlex.split(command)[1:]
        legr(*(found for word in words for found in sorted(Path().glob(word)) or [word]))
    assert Path("tuned.safetensors").exists()
    assert Path("deploy.onnx").exists()


def test_reference_is_up_to_date(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts/reference")]
    fresh = subprocess.run([*script, "--check"], capture_output=True, text=True)
    assert fresh.returncode == 0, fresh.stderr
    page = tmp_path / "reference.md"
    page.write_text("# Reference\n")
    stale = subprocess.run([*script, "--check", str(page)], capture_output=True, text=True)
    assert stale.returncode == 1
    assert "not up to date: run scripts/reference" in stale.stderr
    subprocess.run([*script, str(page)], check=True)
    assert page.read_text() == (ROOT / "docs/reference.md").read_text()
