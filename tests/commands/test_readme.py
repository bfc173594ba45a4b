"""What the README tells a newcomer to type."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from pictures import paint
from running import ROOT
from typer.testing import CliRunner

from legr_cli.cli import app
from legr_cli.deploy import plan_timer
from legr_cli.models.network import open_network

README = ROOT / "README.md"


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


@pytest.mark.slow
def test_learning_on_your_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn, prune, evaluate and fine-tune as it stands there, on a small set and shorter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_timer, "SECONDS", 0.1)
    torch.save(open_network("random:resnet20").model.state_dict(), "resnet20.th")
    for i in range(10):
        for split, count in (("train", 6), ("test", 2)):
            for j in range(count):
                paint(Path("images", split, f"class{i}", f"{j}.png"), seed=100 * i + j)
    page = [block.replace("resnet56", "resnet20") for block in blocks("sh")]  # a smaller one
    text = page[3].replace("cifar10:DIR", "cifar10:images")
    learn, prune, evaluate = text.splitlines()
    few = ["--candidates", "2", "--steps", "1", "--batch-size", "8"]
    for command in (shlex.split(learn) + few, shlex.split(prune)):
        result = CliRunner().invoke(app, command[1:])
        assert result.exit_code == 0, result.output
    networks = sorted(str(path) for path in Path("nets").iterdir())
    assert len(networks) == 7
    assert "nets/*.safetensors" in evaluate
    rest = shlex.split(evaluate.replace("nets/*.safetensors", ""))[2:]
    result = CliRunner().invoke(app, ["evaluate", *networks[:2], *rest])
    assert result.exit_code == 0, result.output
    assert "20 test images of cifar10:images" in result.stdout
    [repair] = page[4].replace("images:DIR", "images:images/train").splitlines()
    repair = repair.replace("nets/*.safetensors", "nets/resnet20-flops40.safetensors --images 20")
    result = CliRunner().invoke(app, shlex.split(repair)[1:])
    assert result.exit_code == 0, result.output
    *tune, evaluate = page[5].replace("cifar10:DIR", "cifar10:images").splitlines()
    few = ["--epochs", "1", "--batch-size", "16"]
    for command in (*(shlex.split(line) + few for line in tune), shlex.split(evaluate)):
        result = CliRunner().invoke(app, command[1:])
        assert result.exit_code == 0, result.output
    assert "better.safetensors" in result.stdout
    here, prune, there = page[6].splitlines()
    assert "nets/*.safetensors" in here
    assert "--ssh me@jetson" in there
    many = here.replace("nets/*.safetensors", " ".join(networks[:2])) + " --seconds 0.05"
    once = there.replace(
        "--ssh me@jetson", "--seconds 0.05"
    )  # tests/deploy/test_boards.py has an sshd
    for command in (many, prune, once):
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert Path("fast.safetensors").exists()
    assert "resnet20.th" in result.stdout


def test_links_lead_somewhere() -> None:
    for page in [README, *(README.parent / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
