"""What the documentation tells users to type: it runs, or at least it parses."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import legr
from typer.main import get_command

from legr_cli.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BEFORE = {"do", "then", "else", "time"}  # words of the shell that a command may follow


def lines(page: Path) -> list[str]:
    """The lines of all shell blocks, those that go on in the next one joined."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each simple command in a line, without a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|"):
            yield words
            words = []
        else:
            words.append(word)


def arguments(words: list[str]) -> list[str] | None:
    """What a simple command hands to legr, if it calls it, itself or by Python or torchrun."""
    while words and (words[0] in BEFORE or re.match(r"\w+=", words[0])):
        words = words[1:]
    if words and Path(words[0]).name == "legr":
        return words[1:]
    if "legr_cli" in words and words[words.index("legr_cli") - 1] == "-m":
        return words[words.index("legr_cli") + 1 :]
    return None


def calls(page: Path) -> list[list[str]]:
    """The arguments of every call of legr on a page."""
    found = (arguments(words) for line in lines(page) for words in simple_commands(line))
    return [args for args in found if args is not None]


def complaint(args: list[str]) -> str | None:
    """What legr would say of these arguments before it does anything; `…` leaves some out."""
    group = get_command(app)
    if args[0].startswith("-"):
        analysis = {name for param in group.params for name in param.opts} | {"--help", "-h"}
        return None if args[0] in analysis else f"no option {args[0]}"
    if args[0] not in group.commands:
        return f"no command {args[0]}"
    try:
        given = [arg for arg in args[1:] if arg != "…"]
        group.commands[args[0]].make_context(f"legr {args[0]}", given)
    except Exception as error:  # Typer's own, by name: their home differs between its versions
        kind = type(error).__name__
        if kind == "Exit" or (kind == "MissingParameter" and "…" in args):
            return None
        return f"{kind}: {error}"
    return None


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
