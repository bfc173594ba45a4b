"""The measuring core: what it counts, how it sums up, and what it says of a machine."""

import ast
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import graphs
import numpy as np
import pytest
import torch
from onnx import TensorProto

from legr_cli.deploy import core

SOURCE = Path(core.__file__)
VERMIN = "import vermin; vermin.main()"
INSTANT = 1e-9  # seconds: as few rounds as there may be


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A network in this process makes its thread take denormals as zero: other tests shall not."""
    yield
    torch.set_flush_denormal(False)


def test_it_runs_on_python_3_8_alone() -> None:
    """Syntax of 3.8, by Python's own parser, and calls of 3.8, by vermin; nothing of legr's."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"numpy", "onnxruntime"}
    command = [sys.executable, "-c", VERMIN, "-q", "--target=3.8-", str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_denormal_weights_are_counted(tmp_path: Path) -> None:
    """1e-40 is below the least normal float, 1.18e-38; zero is no denormal. Also a second time,
    when the first network has made this thread take denormals as zero.
    """
    weight = np.zeros((5, 3, 3, 3), np.float32)
    weight[0], weight[1, 0], weight[2] = 1e-40, -1e-40, 1.2e-38
    data = graphs.convolution(tmp_path / "x.onnx", weight).read_bytes()
    for _ in range(2):
        net = core.Net("x", data)
        assert (net.facts["weights"], net.facts["denormals"]) == (135, 27 + 9)
    [note] = core._notes([net], {"clock_mhz": None, "temperature_c": [None, None]}, [0])
    assert note.startswith("x has 36 denormal weights of 135")


def test_a_ratio_is_the_median_of_rounds() -> None:
    """Turns of a machine that slows down: 1, 2, 4, 3, 8 s beside 2, 4, 8, 9, 16 s."""
    net = SimpleNamespace(facts={"name": "b"})
    pairs = [(1, 2), (2, 4), (4, 8), (3, 9), (8, 16)]
    rounds = [[[a, a, 9 * a], [b]] for a, b in pairs]
    row = core._summary(net, rounds, 1, 0)
    assert row["ratio"] == 2.0
    assert row["ratio_range"] == [2.0, 3.0]
    assert row["median_ms"] == 8000.0
    assert row["runs"] == 5
    assert row["p5_ms"] == pytest.approx(2400)
    assert row["p95_ms"] == pytest.approx(9000 + 0.8 * 7000)
    assert row["spread"] == pytest.approx((14600 - 2400) / 8000)
    assert core._summary(net, rounds, 0, 0)["ratio"] == 1.0
    assert core._summary(net, rounds, 0, 1)["ratio"] == 0.5


class Paced:
    """A network that takes as long as it is told, and notes when it ran."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.facts = {"name": name, "input": [1], "denormals": 0, "weights": 0}

    def warm_up(self) -> None:
        self.log.append("warm " + self.name)

    def turn(self) -> list[float]:
        self.log.append(self.name)
        return [1.0, 1.0]


def test_networks_take_turns_and_every_other_round_goes_back() -> None:
    log: list[str] = []
    found = core.measure([Paced(name, log) for name in "abc"], INSTANT, pinned=[0])
    turns = "abccbaabccbaabc"
    assert log == ["warm a", "warm b", "warm c", *turns]
    assert [row["runs"] for row in found["models"]] == [10, 10, 10]


def test_stopped_in_the_middle_of_a_round_that_round_is_dropped() -> None:
    log: list[str] = []
    nets = [Paced("a", log), Paced("b", log)]
    found = core.measure(nets, 60, pinned=[0], stopped=lambda: len(log) >= 7)
    assert log[2:] == ["a", "b", "b", "a", "a"]
    assert [row["runs"] for row in found["models"]] == [4, 4]
    with pytest.raises(core.CoreError, match="before anything was measured"):
        core.measure(nets, 60, stopped=lambda: True)


JETSON = """processor\t: 0
Features\t: fp asimd evtstrm aes
CPU implementer\t: 0x41
CPU part\t: 0xd07

processor\t: 1
Features\t: fp asimd
CPU implementer\t: 0x4e
CPU part\t: 0x003

"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the kernel's files of another machine lie."""
    read = core.read
    monkeypatch.setattr(core, "read", lambda path: read(f"{tmp_path}{path}"))

    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put("proc/cpuinfo", JETSON)
    put("proc/device-tree/model", "NVIDIA Jetson TX2\0")
    for number, fastest in enumerate((2_035_200, 1_400_000)):
        folder = f"sys/devices/system/cpu/cpu{number}/cpufreq"
        put(f"{folder}/cpuinfo_max_freq", f"{fastest}\n")
        put(f"{folder}/scaling_governor", "schedutil\n")
    return tmp_path


def test_a_board_is_described(board: Path) -> None:
    facts = core.machine([0])
    assert facts["board"] == "NVIDIA Jetson TX2"
    assert (facts["cpu"], facts["features"]) == ("Cortex-A57", ["asimd"])
    assert core.machine([1])["cpu"] == "Denver 2"
    assert facts["governor"] == "schedutil"
    assert facts["runtime"].startswith("onnxruntime 1.")


def test_the_fastest_core_is_chosen(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cores: chosen.append(cores), raising=False
    )
    assert core.pin(1) == [0]
    assert core.pin(2) == [1, 0]
    assert core.pin(1, 1) == [1]
    assert chosen == [[0], [1, 0], [1]]
    for threads, number in ((3, None), (1, 7), (2, 0)):
        with pytest.raises(core.CoreError):
            core.pin(threads, number)


def test_a_clock_that_moves_is_told(board: Path) -> None:
    clock = board / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
    speeds = itertools.cycle(("2035200\n", "1420000\n"))

    class Throttling(Paced):
        def turn(self) -> list[float]:
            clock.write_text(next(speeds))
            return super().turn()

    found = core.measure([Throttling("a", [])], INSTANT, pinned=[0])
    assert found["clock_mhz"] == [1420.0, 2035.2]
    assert "between 1420 and 2035 MHz" in found["notes"][0]
    clock.write_text("2000000\n")
    assert core.measure([Paced("a", [])], INSTANT, pinned=[0])["notes"] == []
    assert "not pinned" in core.measure([Paced("a", [])], INSTANT)["notes"][0]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(TensorProto.UINT8, "u1"), (TensorProto.DOUBLE, "f8"), (TensorProto.FLOAT16, "f2")],
)
def test_images_are_of_the_kind_that_is_wanted(kind: int, dtype: str, tmp_path: Path) -> None:
    net = core.Net("x", graphs.numbers(tmp_path / "x.onnx", kind).read_bytes())
    [images] = net.feed.values()
    assert (images.dtype, images.shape) == (np.dtype(dtype), (1, 3))


def test_a_network_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = graphs.convolution(tmp_path / "x.onnx").read_bytes()
    monkeypatch.setattr(core, "_free_memory", lambda: len(data))
    with pytest.raises(core.CoreError, match="does not fit"):
        core.Net("x", data)


def test_alone_as_on_a_board(tmp_path: Path) -> None:
    """The file copied elsewhere, run by itself."""
    program = tmp_path / "legr_bench.py"
    program.write_bytes(SOURCE.read_bytes())
    one = graphs.convolution(tmp_path / "one.onnx")
    two = graphs.convolution(tmp_path / "two.onnx", np.ones((64, 3, 3, 3), np.float32))
    command = [sys.executable, "-I", str(program), "--seconds", "0.1"]
    done = subprocess.run([*command, two, "--against", one], capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert (found["format"], found["version"]) == ("legr-bench", 1)
    assert [row["name"] for row in found["models"]] == ["one.onnx", "two.onnx"]
    assert found["models"][0]["ratio"] == 1.0
    done = subprocess.run(
        [*command, tmp_path / "no.onnx"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("legr_bench: [Errno 2] No such file")
    assert done.stdout == ""
