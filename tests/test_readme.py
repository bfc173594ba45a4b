"""What the README tells a newcomer to type."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from legr_cli.cli import app

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_first_real_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network, python = blocks("python")
    Path("drone.py").write_text(network)
    namespace: dict = {}
    exec(network, namespace)
    torch.save(namespace["build"]().state_dict(), "drone.pth")
    commands = [line for line in blocks("sh")[2].splitlines() if line.startswith("legr ")]
    assert len(commands) == 2
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert Path("drone-40.onnx").exists()
    exec(python, namespace)
    assert namespace["smaller"](torch.rand(1, 3, 96, 96)).shape == (1, 5)


def test_links_lead_somewhere() -> None:
    for page in [README, *(README.parent / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
