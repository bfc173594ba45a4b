"""Bad input: one clear line, exit 1 (2 for usage), nothing written, overwritten or run."""

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from legr_cli.cli import app
from legr_cli.models.cifar import CifarResNet

SUFFIXES = [".pt", ".pth", ".th", ".t7", ".tar", ".ckpt", ".bin", ".pkl", ".safetensors"]


class Bomb:
    """A pickle of it makes a file when it is trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "resnet20.th"
    torch.save(CifarResNet(20).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def pruned(weights: Path) -> Path:
    path = weights.parent / "pruned.safetensors"
    args = ["prune", str(weights), "--arch", "resnet20", "--flops", "0.5", "--out", str(path)]
    assert CliRunner().invoke(app, args).exit_code == 0
    return path


def refused(*args: object, code: int = 1) -> str:
    """Run a command that must fail in one line; the line."""
    before = {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    after = {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}
    assert after == before
    if code == 1:
        assert isinstance(result.exception, SystemExit)
        [line] = result.stderr.splitlines()
        assert line.startswith("legr: ")
        return line
    return result.stderr


def refuses_checkpoint(path: object, arch: str | None = "resnet20", flops: object = 0.5) -> str:
    more = ["--arch", arch] if arch else []
    return refused("prune", path, *more, "--flops", flops, "--out", "out.safetensors")


def test_missing_file() -> None:
    assert "no.pth does not exist" in refuses_checkpoint("no.pth")


def test_a_name_in_the_place_of_a_file_gets_a_hint() -> None:
    assert "random:resnet18" in refuses_checkpoint("resnet18", None)


def test_directory() -> None:
    Path("folder.pth").mkdir()
    assert "is a directory" in refuses_checkpoint("folder.pth")


def test_unknown_suffix() -> None:
    Path("w.npz").write_bytes(b"x")
    assert "legr reads .safetensors, .pt" in refuses_checkpoint("w.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", ["empty", "random", "truncated"])
def test_damaged_files(suffix: str, content: str, weights: Path, pruned: Path) -> None:
    whole = (pruned if suffix == ".safetensors" else weights).read_bytes()
    data = {
        "empty": b"",
        "random": bytes(range(255, 0, -1)) * 20,
        "truncated": whole[: len(whole) // 2],
    }
    path = Path(f"bad{suffix}")
    path.write_bytes(data[content])
    line = refuses_checkpoint(path)
    assert "is not a valid safetensors file" in line or "is damaged or" in line


@pytest.mark.parametrize("suffix", SUFFIXES[:-1])
@pytest.mark.parametrize(
    "save", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))]
)
@pytest.mark.parametrize(
    "wrap", [lambda bomb: bomb, lambda bomb: {"state_dict": {"conv1.weight": bomb}}]
)
def test_pickles_are_not_run(suffix: str, save: Callable, wrap: Callable, here: Path) -> None:
    path = here / f"bomb{suffix}"
    save(wrap(Bomb(here / "exploded")), path)
    line = refuses_checkpoint(path)
    assert not (here / "exploded").exists()
    assert "save model.state_dict()" in line


def test_pickled_module(here: Path) -> None:
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)), "module.pt")
    line = refuses_checkpoint("module.pt")
    assert "pickled objects (torch.nn.modules" in line
    assert "save model.state_dict()" in line
    assert "if you trust the file, open it with torch.load('module.pt', weights_only=False)" in line


def test_tensors_of_other_kinds() -> None:
    torch.save({"conv1.weight": torch.rand(3, 3).to_sparse()}, "sparse.pth")
    assert "is sparse, quantized or complex" in refuses_checkpoint("sparse.pth")


def test_no_state_dict() -> None:
    torch.save({"epoch": 3, "state_dict": {}}, "empty.pth")
    assert "contains no state dict" in refuses_checkpoint("empty.pth")
    torch.save({"epoch": 3}, "other.pth")
    assert "contains no state dict (it has epoch)" in refuses_checkpoint("other.pth")


def test_training_notes_of_numpy_and_argparse_are_fine(weights: Path) -> None:
    import argparse

    import numpy as np

    good = {"net": torch.load(weights), "acc": np.float64(91.2), "args": argparse.Namespace(lr=0.1)}
    torch.save(good, "ckpt.t7")
    args = ["prune", "ckpt.t7", "--arch", "resnet20", "--flops", "0.5", "--out", "o.safetensors"]
    assert CliRunner().invoke(app, args).exit_code == 0


def raw_safetensors(tensors: dict, notes: dict | None = None, data: bytes = b"\0" * 64) -> Path:
    """A .safetensors file with any header."""
    head = {
        **tensors,
        **({"__metadata__": {"legr": json.dumps(notes)}} if notes is not None else {}),
    }
    text = json.dumps(head).encode()
    Path("crafted.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return Path("crafted.safetensors")


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 64]}},
        {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 64]}},
        {"a": {"dtype": "F32", "shape": [-16], "data_offsets": [0, 64]}},
        {
            "a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]},
            "b": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]},
        },
        {"a": {"dtype": "F32", "shape": [16], "data_offsets": [64, 128]}},
    ],
    ids=["huge", "overflow", "negative", "overlapping", "beyond the end"],
)
def test_unsound_safetensors(tensors: dict) -> None:
    assert "is not a valid safetensors file" in refuses_checkpoint(raw_safetensors(tensors))


def card(pruned: Path) -> dict:
    raw = pruned.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["legr"])


def with_card(pruned: Path, change: Callable[[dict], object]) -> Path:
    """The good file with another header."""
    raw = pruned.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + length])
    data = card(pruned)
    change(data)
    head.pop("__metadata__")
    return raw_safetensors(head, data, raw[8 + length :])


def test_header_cannot_import(pruned: Path, here: Path) -> None:
    (here / "evil.py").write_text("open('imported', 'w').close()\ndef build(): ...\n")
    for name in ("os:system", "evil:build"):
        path = with_card(pruned, lambda c, name=name: c.update(arch=name))
        line = refuses_checkpoint(path, arch=None)
        assert f"pass it again as --arch {name}" in line
        assert not Path("imported").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["kept"]["conv1"].append(16), "are not in 0…15"),
        (lambda c: c["kept"].update({"conv1": [-1, 3]}), "are not in 0…15"),
        (lambda c: c["kept"].update({"conv1": []}), "are not in 0…15"),
        (lambda c: c["kept"].update({"conv1": [3, 3]}), "a value has the wrong type"),
        (lambda c: c["kept"].update({"conv1": ["3"]}), "a value has the wrong type"),
        (lambda c: c["kept"].update({"conv1": c["kept"]["conv1"][1:]}), "contradict"),
        (lambda c: c["kept"].update({"linear": [0, 1]}), "contradict"),
        (lambda c: c["kept"].update({"conv9": [0]}), "do not match at 'conv9'"),
        (lambda c: c["kept"].pop("layer3.2.conv1"), "cannot be opened"),
        (lambda c: c.update(kept=None), "does not fit resnet20"),
        (lambda c: c.update(input=[3, 10**9, 10**9]), "a value has the wrong type"),
        (lambda c: c.update(input=[3, -32, 32]), "a value has the wrong type"),
        (lambda c: c.update(classes=10**12), "--classes must be"),
        (lambda c: c.update(classes=100), "contradict"),
        (lambda c: c.update(options={"weights": "DEFAULT"}), "weights is not allowed"),
        (lambda c: c.update(options={"pad": ["after"]}), "pad must be a number"),
        (lambda c: c.update(options={"strange": 1}), "cannot build"),
        (lambda c: c.update(arch="wide_resnet50_2"), "cannot be opened"),
        (lambda c: c.update(arch="timm:hf-hub:someone/something"), "timm has no network"),
        (lambda c: c.update(version=99), "this legr reads legr-model 1"),
        (lambda c: c.pop("arch"), "damaged header"),
    ],
)
def test_lying_headers(pruned: Path, change: Callable, says: str) -> None:
    if "timm" in says:
        pytest.importorskip("timm")
    assert says in refuses_checkpoint(with_card(pruned, change), arch=None)


def test_huge_network_in_a_header_takes_no_memory(pruned: Path) -> None:
    path = with_card(
        pruned, lambda c: c.update(arch="resnet50", options={"width_per_group": 10**6})
    )
    assert "has more than 1e+10 parameters" in refuses_checkpoint(path, arch=None)


def test_another_network(weights: Path) -> None:
    line = refuses_checkpoint(weights, arch="resnet56")
    assert "does not match resnet56: it has no layer1.3.conv1.weight" in line


def test_another_width() -> None:
    wide = CifarResNet(20)
    wide.conv1 = nn.Conv2d(3, 24, 3, bias=False)
    torch.save(wide.state_dict(), "wide.pth")
    line = refuses_checkpoint("wide.pth")
    assert "conv1.weight is 24x3x3x3 in the file, 16x3x3x3 in the network" in line


def test_another_number_of_classes() -> None:
    torch.save(CifarResNet(20, 100).state_dict(), "hundred.pth")
    assert "pass --classes 100" in refuses_checkpoint("hundred.pth")


def test_no_such_weights_in_the_file(weights: Path, pruned: Path) -> None:
    both = {"state_dict": torch.load(weights), "state_dict_ema": torch.load(weights)}
    torch.save(both, "both.ckpt")
    args = ["--arch", "resnet20", "--flops", "0.5", "--out", "o.safetensors", "--weights"]
    line = refused("prune", "both.ckpt", *args, "ema")
    assert "has no state dict at --weights ema; it has state_dict, state_dict_ema" in line
    assert "leave --weights out" in refused("prune", pruned, *args, "state_dict")
    assert "needs a checkpoint file" in refused("prune", "random:resnet20", *args, "net")
    line = refused("finetune", *args[:2], "--data", "digits", *args[4:], "net")
    assert "--weights requires a CHECKPOINT" in line


def test_no_state_dict_of_several_fits(weights: Path) -> None:
    other = {"params": nn.Conv2d(3, 4, 3).state_dict(), "ema": {"net": torch.load(weights)}}
    torch.save(other, "gan.pth")
    line = refuses_checkpoint("gan.pth", arch="resnet56")
    assert "does not match resnet56: it has no layer1.3.conv1.weight" in line
    assert "it has tensors at params, ema.net" in line


def test_weights_that_are_not_finite() -> None:
    model = CifarResNet(20)
    with torch.no_grad():
        model.layer1[0].conv1.weight[3] = float("nan")
    torch.save(model.state_dict(), "nan.pth")
    assert "'layer1.0.conv1' has NaN or infinite weights" in refuses_checkpoint("nan.pth")


def test_no_arch(weights: Path) -> None:
    assert "pass --arch" in refuses_checkpoint(weights, arch=None)


def test_unknown_arch(weights: Path) -> None:
    line = refuses_checkpoint(weights, arch="resnet5")
    assert "unknown --arch 'resnet5'; did you mean" in line


@pytest.mark.parametrize(
    ("arch", "says"),
    [
        ("no_such_module_x:build", "cannot import --arch no_such_module_x:build"),
        ("json:nothing", "cannot import --arch json:nothing"),
        ("own:number", "own:number is not callable"),
        ("own:text", "returns str, not a torch.nn.Module"),
        ("own:fails", "cannot build --arch own:fails: on purpose"),
        ("resnet20,pad=left", "pad must be one of"),
        ("resnet20,pad", "expected NAME,KEY=VALUE"),
    ],
)
def test_bad_factories(arch: str, says: str, weights: Path) -> None:
    Path("own.py").write_text(
        "number = 3\ndef text(): return 'net'\ndef fails(): raise ValueError('on purpose')\n"
    )
    assert says in refuses_checkpoint(weights, arch=arch)


def test_network_that_cannot_be_traced(here: Path) -> None:
    (here / "branching.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(3, 8, 3)\n"
        "    def forward(self, x):\n"
        "        if x.sum() > 0:\n"
        "            x = -x\n"
        "        return self.conv(x)\n"
    )
    line = refuses_checkpoint("random:branching:Net", arch=None)
    assert "branching.py:7: if x.sum() > 0:" in line
    assert "--module" in line


@pytest.mark.parametrize(
    "flops",
    ["0", "-0.4", "1.5", "nan", "inf", "half", "", "0.8:0.2:0.1", "0.2:0.8:0", "0.2:0.8", "0.4,"],
)
def test_bad_targets(flops: str, weights: Path) -> None:
    assert "--flops" in refuses_checkpoint(weights, flops=flops)


def test_no_target(weights: Path) -> None:
    assert "no target" in refused("prune", weights, "--arch", "resnet20", "--out", "o.safetensors")


def test_target_out_of_reach_names_the_lowest(weights: Path) -> None:
    line = refuses_checkpoint(weights, flops=0.001)
    lowest = line.split("the lowest is ")[1].split(";")[0]
    ok = ["prune", str(weights), "--arch", "resnet20", "--flops", lowest, "--out", "o.safetensors"]
    assert CliRunner().invoke(app, ok).exit_code == 0


@pytest.mark.parametrize(
    ("align", "says"), [("0", "--align 0"), ("-4", "-4"), ("wide", "--align wide")]
)
def test_bad_alignment(align: str, says: str, weights: Path) -> None:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, f"--align={align}")
    assert says in refused(*args, "--out", "o.safetensors")


def test_alignment_wider_than_every_layer(weights: Path) -> None:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, "--align", 128)
    assert "the widest has 64" in refused(*args, "--out", "o.safetensors")


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan"])
def test_bad_min_keep(value: str, weights: Path) -> None:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, f"--min-keep={value}")
    assert "--min-keep must be from 0 to 1" in refused(*args, "--out", "o.safetensors")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("=0.5", "--min-keep =0.5: expected a share such as 0.1, or PATTERN=SHARE"),
        ("nope=0.5", "--min-keep nope=0.5 matches no layer; this network has conv1"),
    ],
)
def test_pattern_of_min_keep(value: str, message: str) -> None:
    """An empty or unknown pattern of --min-keep is refused by its own name."""
    args = ("prune", "random:resnet20", "--flops", 0.5, f"--min-keep={value}")
    assert message in refused(*args, "--out", "o.safetensors")


@pytest.mark.parametrize("value", ["224", "3x0x0", "axbxc", "3x224x224x3x3"])
def test_bad_input_size(value: str, weights: Path) -> None:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, "--input", value)
    assert "--input" in refused(*args, "--out", "o.safetensors")


def ranking(change: Callable[[dict], object] = lambda data: None) -> Path:
    """A ranking.json for ResNet-20, spoilt as asked."""
    names = ["conv1"] + [
        f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)
    ]
    widths = {"c": 16, "1": 16, "2": 32, "3": 64}
    rows = [
        {"name": n, "filters": widths[n[5]] if n != "conv1" else 16, "alpha": 1.0, "kappa": 0.0}
        for n in names
    ]
    data = {"format": "legr-ranking", "version": 1, "arch": "resnet20", "layers": rows}
    change(data)
    Path("ranking.json").write_text(json.dumps(data))
    return Path("ranking.json")


def refuses_ranking(path: Path, weights: Path) -> str:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, "--ranking", path)
    return refused(*args, "--out", "o.safetensors")


def test_a_good_ranking_is_taken(weights: Path) -> None:
    args = ["prune", weights, "--arch", "resnet20", "--flops", "0.5", "--ranking", ranking()]
    result = CliRunner().invoke(app, [str(a) for a in args] + ["--out", "o.safetensors"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format="other"), "is not a ranking"),
        (lambda d: d.update(version=2), "has version 2 of the ranking format"),
        (lambda d: d.pop("layers"), 'no list of "layers"'),
        (lambda d: d["layers"].pop(3), "has no row for layer 'layer1.1.conv1' (16 filters)"),
        (lambda d: d["layers"].append(d["layers"][0]), "two rows for layer 'conv1'"),
        (lambda d: d["layers"].append({**d["layers"][0], "name": "conv9"}), "'conv9', which this"),
        (lambda d: d["layers"][0].update(filters=17), "has 17 filters for layer 'conv1'"),
        (lambda d: d["layers"][0].update(alpha=float("nan")), "not finite"),
        (lambda d: d["layers"][0].update(kappa=float("inf")), "not finite"),
        (lambda d: d["layers"][0].update(alpha=10**400), "not finite or over"),
        (lambda d: d["layers"][0].update(alpha="1"), "wrong type"),
        (lambda d: d["layers"][0].pop("kappa"), "a row needs"),
        (lambda d: d["layers"].insert(0, "row"), "a row needs"),
    ],
)
def test_bad_rankings(change: Callable, says: str, weights: Path) -> None:
    assert says in refuses_ranking(ranking(change), weights)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff\xfe", "[" * 100_000])
def test_broken_rankings(text: str, weights: Path) -> None:
    Path("ranking.json").write_bytes(text.encode("latin-1"))
    line = refuses_ranking(Path("ranking.json"), weights)
    assert "is not valid JSON" in line or "is not a ranking" in line


def test_missing_ranking(weights: Path) -> None:
    assert "no.json does not exist" in refuses_ranking(Path("no.json"), weights)


def test_missing_output_folder(weights: Path) -> None:
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5, "--out", "no/o.safetensors")
    assert "the folder no does not exist" in refused(*args)
    args = ("prune", weights, "--arch", "resnet20", "--flops", "0.5,0.6", "--out", "no/nets")
    assert "the folder no does not exist" in refused(*args)


def test_read_only_output_folder(weights: Path, here: Path) -> None:
    folder = here / "locked"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # root may write everywhere but here
        folder = Path("/sys/kernel")
        if not folder.is_dir():
            pytest.skip("no folder that root cannot write to")
    args = ("prune", weights, "--arch", "resnet20", "--flops", 0.5)
    line = refused(*args, "--out", folder / "o.safetensors")
    assert "cannot write" in line
    assert "nothing was changed" in line


def test_output_forms(weights: Path) -> None:
    Path("taken").write_text("mine")
    args = ("prune", weights, "--arch", "resnet20", "--flops")
    assert "there are 2 targets" in refused(*args, "0.4,0.5", "--out", "o.safetensors")
    assert "name a .safetensors file" in refused(*args, "0.4", "--out", "o.pth")
    assert "is a file, not a folder" in refused(*args, "0.4,0.5", "--out", "taken")
    assert "File name too long" in refused(*args, "0.4", "--out", "o" * 300 + ".safetensors")
    assert "given twice" in refused(*args, "0.4,0.4", "--out", "nets")


def test_the_checkpoint_is_not_overwritten(pruned: Path) -> None:
    Path("net.safetensors").write_bytes(pruned.read_bytes())
    args = ("prune", "net.safetensors", "--flops", 0.9, "--out", "net.safetensors")
    assert "would overwrite CHECKPOINT" in refused(*args)


def test_disk_full(weights: Path, here: Path) -> None:
    """A limit on the size of files stands in for a full disk; what was there stays."""
    (here / "nets").mkdir()
    (here / "nets" / "resnet20-flops40.safetensors").write_text("an older file")
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from legr_cli.cli import main\n"
        "sys.argv = ['legr', *sys.argv[1:]]\n"
        "main()\n"
    )
    args = ["prune", str(weights), "--arch", "resnet20", "--flops", "0.2,0.4,0.8", "--out", "nets"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("legr: cannot write")
    assert [p.name for p in (here / "nets").iterdir()] == ["resnet20-flops40.safetensors"]
    assert (here / "nets" / "resnet20-flops40.safetensors").read_text() == "an older file"


def test_usage(weights: Path) -> None:
    assert "Missing option" in refused("prune", weights, "--arch", "resnet20", code=2)
    assert "No such option" in refused("prune", weights, "--flopz", 0.5, code=2)
    assert "No such command" in refused("prun", weights, code=2)
    assert "Missing argument" in refused("inspect", code=2)


def test_ctrl_c(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("legr_cli.pruning.apply", interrupted)
    args = ("prune", weights, "--arch", "resnet20", "--flops", "0.5,0.6", "--out", "nets")
    assert "legr: interrupted" in refused(*args, code=130)
    assert not Path("nets").exists()


def test_torchvision_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torchvision has no network 'resnet5'" in refuses_checkpoint("torchvision:resnet5", None)
    assert "has no weights 'V9'; it has" in refuses_checkpoint("torchvision:resnet18@V9", None)

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    monkeypatch.setenv("TORCH_HOME", str(Path.cwd() / "cache"))
    line = refuses_checkpoint("torchvision:resnet18", None)
    assert "cannot be fetched (no route); download https://" in line
    assert "--arch resnet18" in line
