"""`legr bench`, end to end, and the files it reads."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from running import fails, legr, runner, spawn

import legr_cli
from legr_cli.cli import app
from legr_cli.deploy.bench_json import read_bench
from legr_cli.deploy.bench_models import BenchModels
from legr_cli.deploy.board import Board, here
from legr_cli.deploy.slope import Point, fitted_slope
from legr_cli.models.network import open_network

QUICK = ("--seconds", 0.05)
PRUNE = ("prune", "random:resnet20", "--align", 1)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-20 as dense.pth, half.safetensors with its half.onnx, and small.onnx."""
    folder = tmp_path_factory.mktemp("nets")
    torch.save(open_network("random:resnet20").model.state_dict(), folder / "dense.pth")
    legr(*PRUNE, "--flops", 0.5, "--onnx", "--out", folder / "half.safetensors")
    args = ("--flops", 0.3, "--onnx", "--batch", 1)
    legr(*PRUNE, *args, "--out", folder / "small.safetensors")
    return folder


@pytest.fixture(scope="module")
def measured(nets: Path) -> Path:
    """A measurement of all of them."""
    out = nets / "bench.json"
    models = ("half.safetensors", "half.onnx", "small.onnx")
    args = (*(nets / name for name in models), "--against", nets / "dense.pth", *QUICK)
    legr("bench", *args, "--out", out)
    return out


@pytest.mark.slow
def test_formats_mix(nets: Path, measured: Path) -> None:
    """A file that says what it is speaks for the checkpoint that does not."""
    found = json.loads(measured.read_text())
    rows = found["models"]
    assert [row["name"] for row in rows] == [
        "dense.pth",
        "half.safetensors",
        "half.onnx",
        "small.onnx",
    ]
    assert found["against"] == "dense.pth"
    assert rows[0]["file"] == str(nets / "dense.pth")
    dense, half, same, small = (row["flops"] for row in rows)
    assert dense == 40_931_968
    assert half == same == open_network(str(nets / "half.safetensors")).notes["flops"]["after"]
    assert small < half < dense
    assert rows[1]["weights_sha256"] == rows[2]["weights_sha256"] != rows[3]["weights_sha256"]
    assert rows[0]["ratio"] == 1.0
    for row in rows:
        assert row["input"] == [1, 3, 32, 32]
        assert row["p5_ms"] <= row["median_ms"] <= row["p95_ms"]
        assert row["ratio_range"][0] <= row["ratio"] <= row["ratio_range"][1]
        assert row["denormals"] == 0
    assert len(found["device"]["pinned"]) == 1
    assert found["settings"] == {"threads": 1, "seconds": 0.05, "core": None}


def test_what_was_measured_is_shown_again(measured: Path, tmp_path: Path) -> None:
    printed = legr("bench", measured)
    assert "dense.pth" in printed
    assert "slope " in " ".join(printed.splitlines()[-2:])
    assert 3 <= printed.count("●") <= 4  # two of the four are the same network
    assert json.loads(legr("bench", measured, "--json")) == read_bench(measured)
    (tmp_path / "again.json").write_bytes(measured.read_bytes())
    both = json.loads(legr("bench", measured, tmp_path / "again.json", "--json"))
    assert both == {"measurements": [read_bench(measured)] * 2}
    for kind, magic in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        picture = tmp_path / f"plot.{kind}"
        legr("bench", measured, "--plot", picture)
        assert picture.read_bytes().startswith(magic)


def test_damaged_measurements_are_refused(measured: Path, tmp_path: Path) -> None:
    good, path = json.loads(measured.read_text()), tmp_path / "b.json"
    row = good["models"][0]
    for key, value, problem in (
        ("format", "other", "not a measurement"),
        ("version", 2, "version 2; this legr reads 1"),
        ("models", [], "models"),
        ("models", [{**row, "ratio": "1"}], "models"),
        ("models", good["models"] * 2, "same name"),
        ("models", [{**row, "flops": 10**400}], "out of range"),
        ("models", [{**row, "ratio": 1e308}], "out of range"),
        ("against", [], "against"),
        ("device", None, "device"),
        ("device", {"pinned": 3}, "device"),
        ("device", {"temperature_c": ["a", "b"]}, "device"),
        ("device", {"cpu": 5}, "device"),
        ("settings", None, "settings"),
        ("extra", math.nan, "out of range"),
    ):
        path.write_text(json.dumps({**good, key: value}))
        with pytest.raises(legr_cli.LegrError, match=f"{path}.*{problem}"):
            read_bench(path)
    path.write_text("{")
    assert "not readable JSON" in fails("bench", path)
    assert "does not exist" in fails("bench", tmp_path / "no.json")
    odd = {**good["device"], "cpu": "\x1b[2Jx $\\frac{$"}
    path.write_text(json.dumps({**good, "device": odd}))
    assert "?[2Jx" in legr("bench", path, "--plot", tmp_path / "p.png")
    path.write_text(json.dumps(good))
    assert "--ssh has no effect" in fails("bench", path, "--ssh", "somewhere")
    assert "b.json is a measurement" in fails("bench", path, "random:resnet20")


def test_a_line_through_points() -> None:
    """(1, 1), (½, ¾), (¼, 5/8) lie on y = ½ + x/2; a point saves half of what its FLOPs do."""
    line = [Point("a", 1.0, 1.0), Point("b", 0.5, 0.75), Point("c", 0.25, 0.625)]
    assert fitted_slope(line) == pytest.approx((0.5, 0.5))
    assert [point.slope for point in line] == [None, 0.5, 0.5]
    assert fitted_slope(line[:2]) is None
    assert fitted_slope([line[0]] * 3) is None


def test_names_are_short_where_they_differ() -> None:
    names = BenchModels(("a/x.onnx", "b/x.onnx", "c/y.onnx", "random:resnet20")).short_names()
    assert list(names.values()) == ["a/x.onnx", "b/x.onnx", "y.onnx", "random:resnet20"]


def test_a_bundle_measures_by_itself(nets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    printed = legr("bench", nets / "small.onnx", "random:resnet20", "--bundle", folder)
    assert set(printed.split()) == {str(path) for path in folder.iterdir()}
    readme = (folder / "README.md").read_text()
    assert 'onnxruntime.InferenceSession("small.onnx")' in readme
    assert "python3 legr_bench.py small.onnx random-resnet20.onnx > bench.json" in readme
    command = [sys.executable, "legr_bench.py", "small.onnx", "random-resnet20.onnx"]
    command += ["--seconds", "0.05"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    (tmp_path / "back.json").write_bytes(done.stdout)
    table = legr("bench", tmp_path / "back.json")
    assert "random-resnet20.onnx" in table
    assert "40.9" in table
    assert "is a file: name a folder" in fails("bench", "x.onnx", "--bundle", nets / "dense.pth")
    assert "--bundle does not measure" in fails(
        "bench", "x.onnx", "--bundle", folder, "--ssh", "somewhere"
    )


def test_names_and_options_in_a_bundle(tmp_path: Path) -> None:
    """Whatever names come to, none is lost; what was asked for is asked for there."""
    names = ("a b", "a-b", "-", "ü")
    paths = [graphs.convolution(tmp_path / f"{name}.onnx", side="side") for name in names]
    args = ("--bundle", tmp_path / "out", "--input", "3x8x8", "--seconds", 0.05, "--threads", 1)
    legr("bench", *paths, *args)
    wanted = "a-b.onnx a-b-2.onnx network.onnx network-2.onnx --seconds 0.05 --input 3x8x8"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert f"python3 legr_bench.py {wanted} > bench.json" in readme
    command = [sys.executable, "legr_bench.py", *wanted.split()]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, check=True)
    assert len(json.loads(done.stdout)["models"]) == 4


def test_a_board_needs_no_torch(nets: Path) -> None:
    """Of what is not in Python itself: numpy, onnxruntime, typer, rich, and what these need."""
    code = (
        "import sys\n"
        "for name in 'torch torchvision onnx fvcore safetensors matplotlib PIL'.split():\n"
        "    sys.modules[name] = None\n"
        "from legr_cli.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", str(nets / "small.onnx"), *map(str, QUICK)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "small.onnx" in done.stdout
    for words, said in (
        (("bench", "random:resnet20"), "must be exported first, which needs torch"),
        (("prune", "random:resnet20", "--flops", "0.5", "--out", "x.safetensors"), "needs torch"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1]


def test_weights_in_another_file(nets: Path, tmp_path: Path) -> None:
    """As torch's exporter leaves them; on a board they must be in one."""
    path = tmp_path / "apart.onnx"
    model = onnx.load(nets / "small.onnx")
    onnx.save(model, path, save_as_external_data=True, location="apart.data", size_threshold=0)
    found = json.loads(legr("bench", path, *QUICK, "--json"))["models"][0]
    assert found["weights"] > 10_000
    with Board(here()) as board, pytest.raises(legr_cli.LegrError, match="in another file"):
        board.load("apart", path.read_bytes())
    (tmp_path / "apart.data").unlink()
    assert "its weights cannot be read" in fails("bench", path, *QUICK)


def test_denormals_are_told(tmp_path: Path) -> None:
    path = graphs.convolution(tmp_path / "x.onnx", np.full((5, 3, 3, 3), 1e-40, np.float32))
    result = runner.invoke(app, ["bench", str(path), *map(str, QUICK)])
    assert "x.onnx has 135 denormal weights of 135" in result.stderr.replace("\n", " ")


def test_bad_networks_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "zeros.onnx").write_bytes(bytes(100))
    good = graphs.convolution(tmp_path / "good.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(good[: len(good) // 2])
    graphs.unknown_op(tmp_path / "magic.onnx")
    graphs.convolution(tmp_path / "any.onnx", side="side")
    graphs.numbers(tmp_path / "ints.onnx", TensorProto.INT64)
    for name, words in {
        "text": "ONNX file",
        "empty": "ONNX file",
        "zeros": "ONNX file",
        "cut": "ONNX file",
        "magic": "my.own:Magic(-1) is not a registered function/op",
        "any": "(nx3xsidexside): pass one, as in --input 3x224x224",
        "ints": "takes tensor(int64)",
        "missing": "missing.onnx does not exist",
    }.items():
        assert words in fails("bench", tmp_path / f"{name}.onnx", *QUICK)
    legr("bench", tmp_path / "any.onnx", "--input", "3x8x8", *QUICK)
    assert "takes nx3x8x8, not images of 3x9x9" in fails(
        "bench", tmp_path / "good.onnx", "--input", "3x9x9", *QUICK
    )


OWN = """
import torch
from torch import nn

def small(num_classes=10):
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
    return nn.Sequential(nn.Conv2d(3, 4, 3), *pool).half()

class Random(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.net = small(num_classes).float()

    def forward(self, x):
        return self.net(x) + torch.rand(1)

class Choosing(Random):
    def forward(self, x):
        return self.net(x) if x.sum() > 0 else self.net(-x)
"""


def test_networks_that_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benched.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert "pass its size with --input" in fails("bench", "random:resnet20", "--input", "1x32x32")
    assert "pass its size with --input" in fails("bench", "random:resnet20", "--input", "3x32")
    legr("bench", "random:benched:small", "--input", "3x16x16", *QUICK)  # half precision
    legr("bench", "random:benched:Random", "--input", "3x16x16", *QUICK)  # noise is no fault
    result = runner.invoke(app, ["bench", "random:benched:Choosing", "--input", "3x16x16"])
    assert result.exit_code == 1
    assert "torch cannot export benched:Choosing to ONNX: " in result.stderr
    assert len(result.stderr.splitlines()) < 5


def test_a_checkpoint_sees_images_as_large_as_its_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pruned file knows its 3x64x64; the checkpoint does not, and is no 3x224x224 beside it."""
    (tmp_path / "sized.py").write_text(OWN.replace(".half()", ""))
    monkeypatch.chdir(tmp_path)
    torch.save(open_network("random:sized:small").model.state_dict(), "dense.pth")
    own = ("--arch", "sized:small")
    prune = ("--input", "3x64x64", "--flops", 0.8, "--align", 1, "--min-keep", 0)
    legr("prune", "dense.pth", *own, *prune, "--onnx", "--out", "small.safetensors")
    args = ("small.safetensors", "--against", "dense.pth", *own, *QUICK, "--json")
    found = json.loads(legr("bench", *args))
    assert [row["input"] for row in found["models"]] == [[1, 3, 64, 64]] * 2
    assert found["notes"] == []
    mixed = json.loads(legr("bench", "small.onnx", "random:resnet20", *QUICK, "--json"))
    assert mixed["notes"][0].startswith("THE INPUT SIZES DIFFER (small.onnx 1x3x64x64, ")


def test_odd_metadata_and_inputs(tmp_path: Path) -> None:
    """What a file says of itself is used where it makes sense, and never trusted."""
    path, odd = graphs.convolution(tmp_path / "x.onnx", side="side"), tmp_path / "odd.onnx"
    model = onnx.load(path)
    for text in ("[" * 100_000, '{"input": []}', '{"input": [9, 9]}', "nonsense"):
        onnx.helper.set_model_props(model, {"legr": text})
        onnx.save(model, odd)
        assert "pass one, as in --input" in fails("bench", odd, *QUICK)
        legr("bench", odd, "--input", "3x8x8", *QUICK)
    onnx.helper.set_model_props(model, {"legr": f'{{"flops": 1{"0" * 400}, "input": [3, 8, 8]}}'})
    onnx.save(model, odd)
    [row] = json.loads(legr("bench", odd, *QUICK, "--json"))["models"]
    assert (row["flops"], row["input"]) == (None, [1, 3, 8, 8])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graphs.save(tmp_path / "any.onnx", [node], [graphs.value("x", None)])
    assert "takes images of any size: pass one" in fails("bench", tmp_path / "any.onnx", *QUICK)
    legr("bench", tmp_path / "any.onnx", "--input", "3x8x8", *QUICK)
    legr("bench", graphs.sum_of_two(tmp_path / "two.onnx"), *QUICK)
    for sizes in (["3x8x8"], ["left=3x8x8"]):
        inputs = [word for size in sizes for word in ("--input", size)]
        said = fails("bench", tmp_path / "two.onnx", *inputs, *QUICK)
        assert "two.onnx has several inputs" in said
        assert "left, right" in said
    graphs.save(tmp_path / "huge.onnx", [node], [graphs.value("x", [1, 2**40, 2**40, 8])])
    assert "huge.onnx" in fails("bench", tmp_path / "huge.onnx", *QUICK)


def test_names_are_no_markup(tmp_path: Path) -> None:
    assert "does not exist" in fails("bench", tmp_path / "r[/x].safetensors", "--bundle", tmp_path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--threads", 0), "--threads must be at least 1, got 0"),
        (("--seconds", 0), "--seconds must be at least 0.01, got 0.0"),
        (("--seconds", "nan"), "--seconds must be at least 0.01"),
        (("--threads", 1024), "--threads 1024: only "),
        (("--core", 99_999), "--core 99999: expected one of "),
        (("--out", "x.txt"), "name a file that ends in .json"),
        (("--plot", "x.gif"), "name a file that ends in .svg, .png or .pdf"),
        (("--out", "no/such/x.json"), "the folder no/such does not exist"),
        (("--input", "3x"), "--input 3x: expected"),
        (("--ssh", "-oProxyCommand=x"), "expected USER@HOST"),
    ],
)
def test_bad_options(args: tuple, words: str, nets: Path, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    assert words in fails("bench", nets / "small.onnx", *args)
    assert list(tmp_path.iterdir()) == []


def test_plots_need_flops(tmp_path: Path) -> None:
    path = graphs.convolution(tmp_path / "x.onnx")
    args = ("--plot", tmp_path / "x.png", "--out", tmp_path / "b.json")
    assert "--plot needs the FLOPs of x.onnx" in fails("bench", path, *QUICK, *args)
    assert [p.name for p in tmp_path.iterdir()] == ["x.onnx"]


def test_more_memory_than_there_is(nets: Path, tmp_path: Path) -> None:
    """A limit on the address space, as batch systems set it: one line, and no core dumped."""
    wide = np.zeros((4096, 4096, 3, 3), np.float32)  # 600 MB
    node = onnx.helper.make_node("Conv", ["images", "w"], ["y"])
    inputs = [graphs.value("images", [1, 4096, 3, 3])]
    path = graphs.save(tmp_path / "wide.onnx", [node], inputs, {"w": wide})
    limit = 'ulimit -v 1500000; exec "$@"'
    command = ["sh", "-c", limit, "sh", sys.executable, "-m", "legr_cli", "bench", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "memory" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_ctrl_c_shows_what_there_is(nets: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    args = (nets / "small.onnx", nets / "half.onnx", "--seconds", 600, "--out", out)
    process = spawn("legr_cli", "bench", *args, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("measuring"):
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "small.onnx" in printed
    assert "half.onnx" in printed
    assert said.strip().splitlines()[-1].startswith("legr: interrupted: ")
    assert not out.exists()


def test_measuring_begins_within_a_second_or_so(nets: Path) -> None:
    """No heavy import on the way: not even onnxruntime in the process that waits."""
    code = (
        "import sys\nfrom legr_cli.cli import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'matplotlib', 'fvcore'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", code, "bench", str(nets / "small.onnx"), *map(str, QUICK)]
    subprocess.run(command, check=True, capture_output=True)
