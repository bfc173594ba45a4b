"""`legr prune`, `legr inspect` and the Python interface, end to end."""

import itertools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import nets
import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import legr_cli
from legr_cli.cli import app
from legr_cli.cost import count_flops
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import open_network

runner = CliRunner()
FACTORY = """
import sys
sys.path.insert(0, {tests!r})
import nets
def build(num_classes=7):
    return nets.enliven(nets.Residual())
"""


def legr(*args: object) -> str:
    """Run a command that must succeed; what it prints on stdout."""
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def resnet20(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state dict as public repositories save it."""
    path = tmp_path_factory.mktemp("weights") / "resnet20.th"
    model = nets.enliven(open_network("random:resnet20").model)
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": weights, "best_prec1": 91.7}, path)
    return path


def header(path: Path) -> dict:
    """The notes in a .safetensors file, read without legr."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["legr"])


def test_one_target(resnet20: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.safetensors"
    printed = legr(
        "prune", resnet20, "--arch", "resnet20", "--flops", 0.5, "--align", 1, "--out", out
    )
    assert printed.splitlines() == [str(out)]
    assert [p.name for p in tmp_path.iterdir()] == ["half.safetensors"]
    notes = header(out)["notes"]
    assert notes["flops"]["before"] == 40_931_968
    assert 0.495 <= notes["flops"]["after"] / 40_931_968 <= 0.5
    model = legr_cli.load(out)
    assert count_flops(model, (3, 32, 32)) == notes["flops"]["after"]
    assert not model.training
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), legr_cli.load(out)(x))


def test_range_makes_a_folder_of_nested_networks(resnet20: Path, tmp_path: Path) -> None:
    out = tmp_path / "nets"
    args = ("--arch", "resnet20", "--flops", "0.2:0.8:0.1", "--align", "1", "--json")
    data = json.loads(legr("prune", resnet20, *args, "--out", out))
    assert [row["target"]["flops"] for row in data["pruned"]] == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert any("α = 1, κ = 0" in note for note in data["notes"])
    kept = []
    for row in data["pruned"]:
        share = row["target"]["flops"]
        assert share - 0.005 <= row["flops_share"] <= share
        assert Path(row["file"]).stat().st_size == row["bytes"]
        assert row["difference"] < 1e-4
        kept.append({n: set(c) for n, c in header(Path(row["file"]))["kept"].items()})
    for small, large in itertools.pairwise(kept):
        assert all(small[name] <= large[name] for name in small)


def test_the_same_command_writes_the_same_bytes(resnet20: Path, tmp_path: Path) -> None:
    args = (
        "prune",
        resnet20,
        "--arch",
        "resnet20",
        "--flops",
        0.5,
        "--out",
        tmp_path / "x.safetensors",
    )
    written = set()
    for _ in range(4):
        legr(*args)
        written.add((tmp_path / "x.safetensors").read_bytes())
    assert len(written) == 1


def test_params_target_and_onnx(resnet20: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.safetensors"
    args = ("--arch", "resnet20", "--params", "0.3", "--align", "1", "--onnx", "--json")
    [row] = json.loads(legr("prune", resnet20, *args, "--out", out))["pruned"]
    assert 0.29 <= row["params_share"] <= 0.3
    session = onnxruntime.InferenceSession(row["onnx"]["file"])
    x = torch.rand(3, 3, 32, 32)
    [found] = session.run(None, {"images": x.numpy()})
    assert np.abs(found - legr_cli.load(out)(x).detach().numpy()).max() < 1e-4


def test_a_ranking_changes_the_result_for_every_kind_of_target(
    resnet20: Path, tmp_path: Path
) -> None:
    layers = json.loads(legr("inspect", resnet20, "--arch", "resnet20", "--json"))["layers"]
    rows = [
        {"name": layer["name"], "filters": layer["channels"], "alpha": 1.0 + i, "kappa": 0.1 * i}
        for i, layer in enumerate(layers)
        if layer["units"]
    ]
    path = tmp_path / "ranking.json"
    path.write_text(json.dumps({"format": "legr-ranking", "version": 1, "layers": rows}))
    for kind in ("--flops", "--params"):
        kept = []
        for more in ([], ["--ranking", path]):
            out = tmp_path / "net.safetensors"
            legr("prune", resnet20, "--arch", "resnet20", kind, "0.5", *more, "--out", out)
            kept.append(header(out)["kept"])
        assert kept[0] != kept[1]
    assert header(out)["notes"]["ranking_sha256"]


def test_a_pruned_file_can_be_pruned_again(resnet20: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    legr("prune", resnet20, "--arch", "resnet20", "--flops", 0.7, "--align", 1, "--out", first)
    legr("prune", first, "--flops", 0.5, "--align", 1, "--out", second)
    outer, inner = header(first)["kept"], header(second)["kept"]
    assert all(set(inner[name]) <= set(outer[name]) for name in outer)
    flops = header(second)["notes"]["flops"]
    assert flops["before"] == header(first)["notes"]["flops"]["after"]
    assert header(second)["notes"]["dense_flops"] == 40_931_968
    assert header(second)["notes"]["dense_sha256"] == header(first)["notes"]["dense_sha256"]
    with pytest.raises(legr_cli.LegrError, match="leave --input out"):
        open_network(str(first), input_shape=(3, 64, 64))
    assert count_flops(legr_cli.load(second), (3, 32, 32)) == flops["after"]


def test_own_factory_needs_its_name_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynet.py").write_text(FACTORY.format(tests=str(Path(nets.__file__).parent)))
    monkeypatch.chdir(tmp_path)
    torch.save(nets.enliven(nets.Residual()).state_dict(), "w.pth")
    args = ("--arch", "mynet:build", "--input", "3x16x16", "--flops", 0.5, "--align", 1)
    legr("prune", "w.pth", *args, "--out", "small.safetensors")
    with pytest.raises(
        legr_cli.LegrError, match="your own factory: pass it again as --arch mynet:build"
    ):
        legr_cli.load("small.safetensors")
    assert legr_cli.load("small.safetensors", "mynet:build")(torch.rand(1, 3, 16, 16)).shape == (
        1,
        7,
    )


def test_python_prune_leaves_the_model() -> None:
    model = nets.make("concat").float()
    before = count_flops(model, nets.INPUT)
    smaller = legr_cli.prune(model, nets.INPUT, flops=0.5, align="1")
    assert count_flops(smaller, nets.INPUT) <= 0.5 * before == 0.5 * count_flops(model, nets.INPUT)


def test_which_weights_were_taken_is_printed_and_chosen(tmp_path: Path) -> None:
    first, second = (nets.enliven(open_network("random:resnet20", seed=s).model) for s in (0, 1))
    path, out = tmp_path / "both.ckpt", tmp_path / "out.safetensors"
    torch.save({"state_dict_ema": second.state_dict(), "state_dict": first.state_dict()}, path)
    args = ["prune", str(path), "--arch", "resnet20", "--flops", "0.6", "--out", str(out)]
    result = runner.invoke(app, [*args, "--json"])
    assert "both.ckpt: state_dict, state_dict_ema fit resnet20; using state_dict" in result.stderr
    assert json.loads(result.stdout)["dense"]["sha256"] == fingerprint(first)
    result = runner.invoke(app, [*args, "--json", "--weights", "state_dict_ema"])
    assert "took" not in result.stderr
    assert json.loads(result.stdout)["dense"]["sha256"] == fingerprint(second)
    assert open_network(str(out)).notes["weights"] == "state_dict_ema"


def test_python_prune_unwraps_and_checks() -> None:
    model = nets.make("concat").float()
    smaller = legr_cli.prune(torch.nn.DataParallel(model), nets.INPUT, params=0.5, align="1")
    assert "stem.weight" in smaller.state_dict()
    for wrong in (
        {},
        {"flops": 0.5, "params": 0.5},
        {"flops": "0.5"},
        {"flops": 0.5, "align": None},
    ):
        with pytest.raises(legr_cli.LegrError):
            legr_cli.prune(model, nets.INPUT, **wrong)
    for bad_model, shape in ((model, (3, -1, 4)), (model, "3x4x4"), (3, nets.INPUT)):
        with pytest.raises(legr_cli.LegrError):
            legr_cli.prune(bad_model, shape, flops=0.5)


def test_align_is_said_and_kept(tmp_path: Path) -> None:
    args = ("prune", "random:resnet18", "--flops", "0.5", "--align", "avx512", "--input", "3x64x64")
    data = json.loads(legr(*args, "--json", "--out", tmp_path / "x.safetensors"))
    assert "avx512: multiples of 16" in data["align"]
    assert all(kept % 16 == 0 or kept == of for kept, of in data["pruned"][0]["layers"].values())


def test_inspect_json() -> None:
    data = json.loads(legr("inspect", "random:resnet20", "--json"))
    layers = {layer["name"]: layer for layer in data["layers"]}
    assert len(layers) == 20
    assert layers["conv1"]["flops"] == 3 * 16 * 9 * 32 * 32
    assert layers["linear"]["pinned"] == [{"channels": 10, "by": "the network's output"}]
    assert layers["layer1.0.conv2"]["groups"] == layers["conv1"]["groups"]
    assert (
        data["flops"] == 40_931_968 == sum(x["flops"] for x in data["layers"]) + data["other_flops"]
    )


def test_inspect_table_names_what_pins() -> None:
    printed = legr("inspect", "random:convnext_tiny", "--input", "3x64x64")
    assert "LayerNorm" in printed
    assert "lowest target" in printed


def test_inspect_names_layers_without_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = FACTORY.format(tests=str(Path(nets.__file__).parent))
    (tmp_path / "mynet3.py").write_text(factory + "Odd = nets.PinnedByStandardised\n")
    monkeypatch.chdir(tmp_path)
    args = ("inspect", "random:mynet3:Odd", "--input", "3x16x16")
    reason = "Standardised (odd), whose forward treats channels unlike that of Conv2d"
    shown = " ".join(legr(*args).split())  # a terminal breaks the line
    assert f"pinned by {reason}: stem (13), odd (23)" in shown
    pins = json.loads(legr(*args, "--json"))["pinned"]
    assert {"layer": "odd", "channels": 23, "reason": reason} in pins


def test_the_lowest_target_can_be_asked_for(tmp_path: Path) -> None:
    lowest = json.loads(legr("inspect", "random:resnet20", "--json"))["lowest_flops_share"]
    for align, share in lowest.items():
        out = tmp_path / f"{align}.safetensors"
        legr("prune", "random:resnet20", "--flops", share, "--align", align, "--out", out)


def test_names_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = FACTORY.format(tests=str(Path(nets.__file__).parent))
    (tmp_path / "mynet2.py").write_text(factory + "Two = build\n")
    monkeypatch.chdir(tmp_path)
    args = ["random:mynet2:Two", "--input", "3x16x16", "--flops", "0.5", "--out", "x.safetensors"]
    assert "mynet2:Two on 3x16x16: " in runner.invoke(app, ["prune", *args]).stderr


def test_archs_are_listed() -> None:
    names = legr("inspect", "--archs").split()
    assert {"resnet56", "vgg13_cifar", "mobilenet_v2_cifar", "resnet50", "densenet121"} <= set(
        names
    )


@pytest.mark.parametrize(
    "args", [["--help"], ["prune", "--help"], ["inspect", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\nfrom legr_cli.cli import app\n"
        f"try: app({args!r})\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'numpy', 'onnx', 'torchvision', 'fvcore'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_module_runs_and_tables_go_to_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "legr_cli", "prune", "random:resnet20", "--flops", "0.4"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "x.safetensors")],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.stdout.splitlines() == [str(tmp_path / "x.safetensors")]
    assert "flops 40.0%" in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(
    "name", ["shufflenet_v2_x0_5", "regnet_x_400mf", "densenet121", "googlenet"]
)
def test_saved_networks_come_back_the_same(name: str, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    legr(
        "prune", f"random:{name}", "--flops", 0.4, "--input", "3x64x64", "--align", 1, "--out", out
    )
    network = open_network(str(out))
    assert count_flops(network.model, network.input_shape) == network.notes["flops"]["after"]
    assert torch.isfinite(network.model(torch.rand(1, 3, 64, 64))).all()
