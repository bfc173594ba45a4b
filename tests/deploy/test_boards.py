"""Other machines: a board behind a real sshd on this one, and an emulated Cortex-A57.

Skipped where there is no sshd, or no emulator. `.ci/run` installs both, and then none is skipped.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from running import ROOT, fails, legr, spawn

from legr_cli.deploy import plan_timer
from legr_cli.deploy.board import Board, Place, here
from legr_cli.models.network import open_network

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
A57 = os.environ.get("LEGR_A57")  # a folder that scripts/a57 has made
REQUIRED = os.environ.get("LEGR_BOARDS") == "required"
QUICK = ("--seconds", "0.05")

with_sshd = pytest.mark.skipif(not SSHD and not REQUIRED, reason="no sshd on this machine")
arm = [
    pytest.mark.arm,
    pytest.mark.skipif(not A57 and not REQUIRED, reason="LEGR_A57 names no folder of scripts/a57"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned ResNet-20."""
    out = tmp_path_factory.mktemp("net") / "small.safetensors"
    legr("prune", "random:resnet20", "--flops", 0.3, "--align", "arm", "--onnx", "--out", out)
    return out.with_suffix(".onnx")


@pytest.fixture(scope="module")
def key_of(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Keys, made as users make them."""
    folder = tmp_path_factory.mktemp("keys")

    def made(name: str) -> Path:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
        return folder / name

    return made


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory, key_of: object) -> Iterator[Path]:
    """A real sshd on loopback, and the user's ssh with a config that knows it as `board`."""
    assert SSHD, "LEGR_BOARDS=required, and there is no sshd"
    folder = tmp_path_factory.mktemp("ssh")
    server, mine, other = key_of("server"), key_of("mine"), key_of("other")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.copy(f"{mine}.pub", folder / "authorized")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {server}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nPasswordAuthentication no\n"
    )
    kind, public, *_ = Path(f"{server}.pub").read_text().split()
    wrong = Path(f"{other}.pub").read_text().split()[1]
    (folder / "known").write_text(f"[127.0.0.1]:{port} {kind} {public}\n")
    (folder / "mistaken").write_text(f"[127.0.0.1]:{port} {kind} {wrong}\n")
    (folder / "config").write_text(
        f"Host stranger\n  IdentityFile {other}\n"
        f"Host impostor\n  UserKnownHostsFile {folder / 'mistaken'}\n"
        "Host closed\n  Port 1\n"
        f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentitiesOnly yes\n  BatchMode yes\n  UserKnownHostsFile {folder / 'known'}\n"
        f"  GlobalKnownHostsFile none\nHost * !stranger\n  IdentityFile {mine}\n"
    )
    (folder / "bin").mkdir()
    own = folder / "bin" / "ssh"  # the real one; ssh itself looks for no config but ~/.ssh/config
    own.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "config"} "$@"\n')
    own.chmod(0o755)
    with contextlib.suppress(OSError):
        Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=-3)
    end = time.monotonic() + 20
    while not answers(port):
        assert process.poll() is None, "sshd does not start"
        assert time.monotonic() < end
        time.sleep(0.05)
    yield folder
    process.terminate()
    process.wait()


@pytest.fixture
def on_path(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That ssh is the one that legr finds."""
    monkeypatch.setenv("PATH", f"{ssh / 'bin'}:{os.environ['PATH']}")
    return ssh


@pytest.fixture
def board_python(tmp_path: Path) -> Path:
    """The board's Python under a name of its own, to see whether anything of it is left."""
    path = tmp_path / "board-python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" {path}\n')
    path.chmod(0o755)
    return path


def running(mark: object) -> list[str]:
    """The processes that have this word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace")
            if str(mark) in words and "legr_cli" not in words and "ssh" not in words:
                found.append(path.parent.name)
    return found


def gone(mark: object) -> bool:
    """Whether all of them end, soon."""
    end = time.monotonic() + 15
    while running(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@with_sshd
def test_bench_over_ssh(small: Path, on_path: Path, board_python: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    args = ("random:resnet20", "--ssh", "board", "--python", board_python, *QUICK)
    found = json.loads(legr("bench", small, *args, "--json"))
    assert found["device"]["host"] == "board"
    assert [row["name"] for row in found["models"]] == ["small.onnx", "random:resnet20"]
    assert found["models"][1]["flops"] == 40_931_968
    assert gone(board_python)
    assert set(tmp_path.iterdir()) == before


@with_sshd
def test_a_shell_that_chatters(small: Path, on_path: Path, tmp_path: Path) -> None:
    """Boards greet whoever comes."""
    loud = tmp_path / "loud"
    loud.write_text(f'#!/bin/sh\necho Welcome to L4T; echo 7; exec {sys.executable} "$@"\n')
    loud.chmod(0o755)
    args = ("--ssh", "board", "--python", loud, *QUICK)
    assert "small.onnx" in legr("bench", small, *args)


@with_sshd
def test_prune_to_a_latency_on_a_board(
    on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_timer, "SECONDS", 0.3)
    out = tmp_path / "x.safetensors"
    args = ("--latency", 0.8, "--ssh", "board", "--python", sys.executable, "--out", out, "--json")
    [row] = json.loads(legr("prune", "random:small_cifar", *args))["pruned"]
    assert row["latency"]["ratio"] <= 0.8
    assert open_network(str(out)).notes["latency"] == row["latency"]


@with_sshd
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--ssh", "stranger"), "stranger cannot be reached ("),
        (("--ssh", "stranger"), "Permission denied (publickey"),
        (("--ssh", "impostor"), "Host key verification failed"),
        (("--ssh", "closed"), "Connection refused); does `ssh closed` work?"),
        (("--ssh", "board", "--python", "python9"), "install python3, or pass --python"),
    ],
)
def test_boards_that_cannot_be_used(args: tuple, words: str, small: Path, on_path: Path) -> None:
    assert words in fails("bench", small, *args)


@with_sshd
def test_a_board_without_onnxruntime(small: Path, on_path: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # without site-packages
    bare.chmod(0o755)
    said = fails("bench", small, "--ssh", "board", "--python", bare)
    assert "board: its Python has no numpy: " in said
    assert said.endswith("-m pip install numpy onnxruntime")


@with_sshd
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle_nothing_is_left_there(
    how: signal.Signals, small: Path, on_path: Path, board_python: Path
) -> None:
    args = (small, "--ssh", "board", "--python", board_python, "--seconds", 600)
    process = spawn("legr_cli", "bench", *args, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("measuring"):
            break
    assert running(board_python)
    time.sleep(0.5)
    if how is signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: its ssh, too
    else:
        process.kill()
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
    assert ("small.onnx" in printed) == (how is signal.SIGINT)
    assert gone(board_python)


def emulated() -> Path:
    """The Python of the emulated board."""
    assert A57, "LEGR_BOARDS=required, and LEGR_A57 names no folder of scripts/a57"
    return Path(A57) / "python"


class TestA57:
    """The real core, on an emulated Cortex-A57."""

    pytestmark = arm

    def test_its_answers_are_those_of_x86(self, small: Path) -> None:
        command = here().command
        place = Place((str(emulated()), *command[1:]), "a57")
        with Board(place) as there, Board(here()) as x86:
            assert there.device["cpu"] == "Cortex-A57"
            assert (there.device["machine"], there.device["kernels"]) == ("aarch64", "arm")
            for board in (there, x86):
                board.load("small", small.read_bytes())
            found, expected = (np.array(board.first_output("small")) for board in (there, x86))
            timed = there.measure(["small"], 0.05)["models"][0]
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        assert found.argmax() == expected.argmax()
        assert timed["runs"] >= 10

    def test_legr_bench_without_torch(self, small: Path) -> None:
        """Nothing but numpy, onnxruntime, typer and rich is installed there."""
        command = [emulated(), "-m", "legr_cli", "bench", small, *QUICK, "--json"]
        done = subprocess.run(
            command, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        found = json.loads(done.stdout)
        assert found["device"]["cpu"] == "Cortex-A57"
        assert found["models"][0]["runs"] >= 10
