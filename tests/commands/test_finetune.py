"""`legr finetune`, end to end, on the digits inside the package."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import digits_net
import numpy as np
import onnxruntime
import pytest
import torch
from pictures import paint
from running import await_lines, fails, legr, runner, spawn
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import legr_cli
from legr_cli.cli import app
from legr_cli.data.dataset import open_data
from legr_cli.errors import SettingError
from legr_cli.models.card import card_of
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import open_network
from legr_cli.reports.collect import collect
from legr_cli.training import resume
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.recipes import settings_of
from legr_cli.training.run import Run

NET = ("--arch", "digits_net:build", "--input", "3x32x32")
TUNE = ("--arch", "digits_net:build", "--data", "digits")
DROPPING = ("--arch", "digits_net:dropping", "--input", "3x32x32", "--data", "digits")


@pytest.fixture(scope="module")
def pruned(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pruned") / "small.safetensors"
    assert legr("prune", weights, *NET, "--flops", 0.3, "--out", out) == f"{out}\n"
    return out


def tensors(path: Path, arch: str = "digits_net:build") -> dict[str, torch.Tensor]:
    """The weights of a network."""
    return legr_cli.load(path, arch=arch).state_dict()


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


def lines(out: Path) -> list[dict]:
    text = out.with_suffix(".epochs.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_prune_then_finetune_then_evaluate(pruned: Path, tmp_path: Path) -> None:
    """What a user types; the accuracy that is printed is that of the file, measured by hand."""
    out = tmp_path / "tuned.safetensors"
    said = json.loads(legr("finetune", pruned, *TUNE, "--epochs", 8, "--out", out, "--json"))
    assert said["before"]["accuracy"] < 0.6
    assert said["test"]["accuracy"] > 0.8
    again = json.loads(legr("evaluate", out, *TUNE, "--json"))["scores"][0]
    assert (again["accuracy"], again["loss"]) == (said["test"]["accuracy"], said["test"]["loss"])
    held = json.loads(legr("evaluate", out, *TUNE, "--split", "val", "--json"))["scores"][0]
    assert held["accuracy"] == said["validation"]["accuracy"]
    model = legr_cli.load(out, arch="digits_net:build")
    with np.load(Path(legr_cli.__file__).parent / "training" / "digits.npz") as packed:
        pixels, labels = (torch.from_numpy(packed[key][-360:]) for key in ("images", "labels"))
    shown = pixels.double().view(-1, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    images = ((shown / 16 * 255).floor() / 255 - 0.305) / 0.376
    with torch.inference_mode():
        right = model(images.float().expand(-1, 3, -1, -1)).argmax(1) == labels
    assert right.double().mean().item() == pytest.approx(said["test"]["accuracy"])


def test_what_a_training_leaves(pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    assert legr("finetune", pruned, *TUNE, "--epochs", 3, "--seed", 7, "--out", out) == f"{out}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"t.safetensors", "t.epochs.jsonl"}
    header, *epochs = lines(out)
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert header["settings"]["recipe"] == "quick"
    for line in epochs:
        assert line["images_per_second"] > 0
        assert line["seconds"] > line["measure_seconds"] > 0
        assert 0 <= line["train_accuracy"] <= 1
    best = max(epochs, key=lambda line: (line["accuracy"], -line["loss"]))
    network = open_network(str(out), "digits_net:build")
    notes = network.notes["training"]
    assert notes["best_epoch"] == best["epoch"]
    assert notes["validation"]["accuracy"] == best["accuracy"]
    assert notes["validation"]["images"] == 142
    assert notes["test"]["images"] == 360
    assert notes["settings"]["seed"] == 7
    assert notes["data"]["split"]["seed"] == 7
    assert notes["weights_sha256"] == header["weights_sha256"]
    assert network.notes["statistics"]["mean"] == [0.305] * 3
    before = open_network(str(pruned), "digits_net:build")
    assert network.kept == before.kept
    assert network.notes["flops"] == before.notes["flops"]
    again = tmp_path / "cut.safetensors"
    legr("prune", out, "--arch", "digits_net:build", "--flops", 0.5, "--out", again)
    cut = open_network(str(again), "digits_net:build").notes
    assert "training" not in cut  # another network: it never reached that
    assert cut["statistics"] == network.notes["statistics"]


def test_same_seed_same_weights(pruned: Path, tmp_path: Path) -> None:
    found = []
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        out = tmp_path / f"{name}.safetensors"
        legr("finetune", pruned, *TUNE, "--epochs", 2, "--seed", seed, "--out", out)
        found.append(tensors(out))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_from_scratch(tmp_path: Path) -> None:
    """No checkpoint; as many classes as the data has; other seeds begin with other weights."""
    for label in range(3):
        for row in range(8):
            paint(tmp_path / "images" / "train" / str(label) / f"{row}.png", seed=9 * label + row)
    data = ("--data", f"folder:{tmp_path / 'images'}")
    begun = []
    for seed in (0, 1):
        out = tmp_path / f"{seed}.safetensors"
        args = ("--arch", "resnet20", "--epochs", 1, "--batch-size", 16, "--seed", seed)
        legr("finetune", *args, *data, "--out", out)
        network = open_network(str(out))
        assert network.arch.classes == 3
        assert network.kept is None
        notes = network.notes["training"]
        assert notes["settings"]["recipe"] == "cifar-train"
        assert notes["test"] is None
        begun.append(notes["weights_sha256"])
    assert begun[0] != begun[1]


FULL = (*DROPPING, "--epochs", 12, "--ema", 0.9, "--clip", 2, "--label-smoothing", 0.1)


def crash_run(weights: str, out: str) -> None:
    """A training in a process that will be killed."""
    torch.set_num_threads(1)
    legr("finetune", *FULL, "--teacher", weights, *TEACHER, "--out", out, "--resume")


TEACHER = ("--teacher-arch", "digits_net:build", "--lr", 0.02)


def test_killed_at_many_moments_it_ends_with_the_same_weights(
    weights: Path, tmp_path: Path
) -> None:
    """With all that has a state: momentum, average, dropout, schedule, the best so far."""
    whole, out = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    legr("finetune", *FULL, "--teacher", weights, *TEACHER, "--out", whole)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "test_finetune"])
    journal, rng, seen = out.with_suffix(".epochs.jsonl"), random.Random(0), [0]
    for kill in range(4):
        process = context.Process(target=crash_run, args=(str(weights), str(out)))
        process.start()
        await_lines(journal, min(seen[-1] + 1 + kill % 2, 11))
        time.sleep(rng.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        seen.append(journal.read_bytes().count(b"\n"))
    assert not out.exists()
    legr("finetune", *FULL, "--teacher", weights, *TEACHER, "--out", out, "--resume")
    arch = "digits_net:dropping"
    assert same(tensors(out, arch), tensors(whole, arch))
    drop = ("seconds", "measure_seconds", "images_per_second")
    told = [[{k: v for k, v in x.items() if k not in drop} for x in lines(o)] for o in (out, whole)]
    assert told[0] == told[1]
    assert not out.with_suffix(".state").exists()
    assert not same(tensors(out, arch), open_network(f"random:{arch}").model.state_dict())


def test_float16_goes_on_with_its_scale() -> None:
    """Older GPUs: the loss is scaled, and how much is part of the state."""
    data, cpu = open_data("digits", (3, 32, 32), seed=0), ProcessGroup(torch.device("cpu"))
    data = replace(data, train=data.train.pick(np.arange(64)))
    settings = settings_of("quick", epochs=2, batch_size=32)
    first, second = (
        Run(digits_net.build(), data, settings, cpu, half=torch.float16) for _ in range(2)
    )
    scaler = first._trainer.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**9})
    line = first.train_epoch(lambda _: None)
    for name, tensor in second.tensors().items():
        tensor.copy_(first.tensors()[name])
    second.replay([line])
    second.synchronize()
    assert second._trainer.scaler.get_scale() == scaler.get_scale() == 2.0**9
    for run in (first, second):
        run.train_epoch(lambda _: None)
        assert run.is_finished
    assert same(first.model.state_dict(), second.model.state_dict())


def test_resume_of_a_training_that_is_done(pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    args = ("finetune", pruned, *TUNE, "--epochs", 2, "--out", out)
    first = json.loads(legr(*args, "--json"))
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert json.loads(legr(*args, "--json", "--resume")) == first
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert "already exists (a network): pass --resume" in fails(*args)
    other = fails(*args, "--resume", "--lr", 0.3, "--ema", 0.5)
    assert "different training: --lr was 0.05, is now 0.3; --ema was 0.0, is now 0.5." in other
    old = out.read_bytes()
    legr(*args, "--force", "--lr", 0.3)
    assert lines(out)[0]["settings"]["lr"] == 0.3
    new = tensors(out)
    out.write_bytes(old)  # as if --force had been killed in its first epoch
    said = fails(*args, "--resume", "--lr", 0.3)
    assert "already exists and was not written by this training" in said
    assert out.read_bytes() == old
    assert len(lines(out)) == 3
    assert not same(tensors(out), new)


def test_resume_of_another_training_is_refused(weights: Path, pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    legr("finetune", pruned, *TUNE, "--epochs", 2, "--out", out)
    args = ("finetune", *TUNE, "--epochs", 2, "--out", out, "--resume")
    said = fails(args[0], weights, *args[1:], "--input", "3x32x32")
    assert "the checkpoint's weights differ" in said
    assert "--seed was 0, is now 1" in fails(args[0], pruned, *args[1:], "--seed", 1)
    assert "the teacher's weights differ" in fails(args[0], pruned, *args[1:], "--teacher", weights)


def test_early_stopping(tmp_path: Path) -> None:
    """At such a rate nothing gets better: the first epoch stays the best, patience ends it."""
    out = tmp_path / "t.safetensors"
    net = ("--arch", "digits_net:normless", "--input", "3x32x32", "--data", "digits")
    args = ("--recipe", "birds", "--epochs", 9, "--lr", 1e-12)
    said = json.loads(legr("finetune", *net, *args, "--out", out, "--json"))
    epochs = lines(out)[1:]
    assert said["settings"]["patience"] == 3
    assert said["epochs"] == len(epochs) == said["best_epoch"] + 3 < 9


def test_all_images_are_trained_on(tmp_path: Path) -> None:
    """Nothing gets better, as above; but with no image to choose by it is the last that stays."""
    out = tmp_path / "t.safetensors"
    net = ("--arch", "digits_net:normless", "--input", "3x32x32", "--data", "digits")
    args = ("finetune", *net, "--epochs", 9, "--lr", 1e-12, "--out", out)
    said = json.loads(legr(*args, "--all-images", "--json"))
    header, *epochs = lines(out)
    assert header["data"]["images"] == {"train": 1437, "validation": 142}
    assert not all(line["accuracy"] > epochs[0]["accuracy"] for line in epochs[1:])
    assert said["best_epoch"] == len(epochs) == 9
    assert said["validation"] is None
    assert said["test"]["images"] == 360
    assert "the data differs" in fails(*args, "--resume")
    assert "pass --patience 0" in fails(*args, "--all-images", "--patience", 1, "--force")


def test_a_teacher_is_enough(weights: Path, pruned: Path, tmp_path: Path) -> None:
    """With all of the weight on the dense network's answers no label is used, and yet it learns."""
    out = tmp_path / "taught.safetensors"
    args = ("--epochs", 8, "--teacher", weights, "--teacher-weight", 1)
    said = json.loads(legr("finetune", pruned, *TUNE, *args, "--out", out, "--json"))
    assert said["before"]["accuracy"] < 0.6
    assert said["test"]["accuracy"] > 0.8
    notes = open_network(str(out), "digits_net:build").notes["training"]
    dense = open_network(str(weights), "digits_net:build", input_shape=(3, 32, 32))
    assert notes["teacher_sha256"] == fingerprint(dense.model)


def test_cut_repaired_tuned(weights: Path, tmp_path: Path) -> None:
    """One step cuts and repairs as two do; tuning starts from there, at a low rate."""
    cut, one, two, tuned = (tmp_path / f"{n}.safetensors" for n in ("cut", "one", "two", "tuned"))
    prune = ("prune", weights, *NET, "--flops", 0.3)
    legr(*prune, "--out", cut)
    few = ("--repair", "digits", "--repair-images", 60)
    said = json.loads(legr(*prune, *few, "--onnx", "--out", one, "--json"))["pruned"][0]
    dense = ("--dense", weights, "--arch", "digits_net:build", "--data", "digits")
    legr("repair", cut, *dense, "--images", 60, "--out", two)
    assert same(tensors(one), tensors(two))
    assert not same(tensors(one), tensors(cut))
    notes = [open_network(str(path), "digits_net:build").notes for path in (one, two)]
    assert notes[0]["repaired"] == notes[1]["repaired"]
    assert said["repair"]["divergence"]["after"] < said["repair"]["divergence"]["before"]
    session = onnxruntime.InferenceSession(said["onnx"]["file"])
    x = torch.rand(2, 3, 32, 32)
    model = legr_cli.load(two, arch="digits_net:build")
    assert (
        np.abs(session.run(None, {"images": x.numpy()})[0] - model(x).detach().numpy()).max() < 1e-4
    )
    epoch = ("--epochs", 1, "--out", tuned)
    result = runner.invoke(
        app, list(map(str, ["finetune", one, *TUNE, "--teacher", weights, *epoch]))
    )
    assert "recipe repaired: 1 epoch, learning rate 0.01" in result.stderr
    after = open_network(str(tuned), "digits_net:build").notes
    assert after["training"]["settings"]["recipe"] == "repaired"
    assert after["repaired"] == notes[0]["repaired"]
    assert [line.split()[1] for line in after["commands"]] == ["prune", "finetune"]
    assert "would undo that" in fails("repair", tuned, *dense, "--out", tmp_path / "x.safetensors")
    legr("finetune", one, *TUNE, *epoch, "--force")  # no teacher
    assert lines(tuned)[0]["settings"]["recipe"] == "quick"
    network = legr_cli.load(one, arch="digits_net:build")
    teacher = open_network(str(weights), "digits_net:build").model
    taught = legr_cli.finetune(network, "digits", teacher=teacher, epochs=1)
    assert card_of(taught).notes["training"]["settings"]["recipe"] == "repaired"
    again = card_of(legr_cli.prune(network, flops=0.5, input_shape=(3, 32, 32)))
    assert "repaired" not in again.notes


def test_what_to_do_with_a_cut_network_is_said(weights: Path, tmp_path: Path) -> None:
    cut, fixed = tmp_path / "cut.safetensors", tmp_path / "fixed.safetensors"
    prune, few = (
        ("prune", weights, *NET, "--flops", 0.3),
        ("--repair", "digits", "--repair-images", 60),
    )
    [bare, exported, repaired] = (
        json.loads(legr(*prune, *more, "--json"))["notes"]
        for more in (("--out", cut), ("--out", cut, "--onnx"), (*few, "--out", fixed))
    )
    assert any("this network is not repaired: legr repair makes" in note for note in bare)
    assert any("is not repaired: legr prune --repair SPEC" in note for note in exported)
    assert not any("not repaired" in note for note in repaired)
    for path, count in ((cut, 1), (fixed, 0)):
        notes = json.loads(legr("evaluate", path, *TUNE, "--json"))["notes"]
        assert sum("neither repaired nor fine-tuned" in note for note in notes) == count
    scores = tmp_path / "scores.json"
    legr("evaluate", cut, fixed, *TUNE, "--out", scores)
    written = json.loads(scores.read_text())
    assert (written["format"], written["split"]) == ("legr-scores", "test")
    [row, better] = written["scores"]
    assert row["accuracy"] < better["accuracy"]
    [net] = collect([tmp_path]).networks  # the cut one gave way to the repaired one
    assert (net.file, net.stage) == (fixed, "repaired")
    [found] = net.scores.values()
    assert (found.cut, found.repaired) == (row["accuracy"], better["accuracy"])
    said = fails("evaluate", cut, *TUNE, "--out", tmp_path / "scores.txt")
    assert "name a file that ends in .json" in said
    out = ("--flops", 0.2, "--out", tmp_path / "x.safetensors")
    for option in (("--repair-images", 9), ("--normalize", "none"), ("--download",)):
        assert f"{option[0]} requires --repair" in fails("prune", weights, *NET, *out, *option)
    arch = ("--arch", "digits_net:build")
    assert "was already pruned" in fails("prune", cut, *arch, *out, "--repair", "digits")
    assert not (tmp_path / "x.safetensors").exists()


def test_statistics_alone(pruned: Path, tmp_path: Path) -> None:
    """As `evaluate --recalibrate` sees it, in a file."""
    out = tmp_path / "t.safetensors"
    args = ("finetune", pruned, *TUNE, "--bn-recalibrate", "--out", out)
    said = json.loads(legr(*args, "--json"))
    seen = json.loads(legr("evaluate", pruned, *TUNE, "--recalibrate", "--json"))["scores"][0]
    kept = json.loads(legr("evaluate", out, *TUNE, "--json"))["scores"][0]
    assert said["test"]["accuracy"] == seen["accuracy"] == kept["accuracy"]
    assert said["epochs"] == 0
    changed = {n for n, t in tensors(out).items() if not torch.equal(t, tensors(pruned)[n])}
    assert changed
    assert all(n.endswith(("running_mean", "running_var", "batches_tracked")) for n in changed)
    assert said["settings"] == {"recipe": "bn-recalibrate", "seed": 0}
    assert "different training" in fails(*args[:-3], "--out", out, "--resume")
    assert "remove --epochs" in fails(*args, "--epochs", 3, "--force")
    assert "remove --patience" in fails(*args, "--patience", 0, "--force")
    assert "remove --all-images" in fails(*args, "--all-images", "--force")
    assert "remove --teacher" in fails(*args, "--teacher", pruned, "--force")
    fresh = ("finetune", "--arch", "digits_net:normless", "--data", "digits")
    other = tmp_path / "n.safetensors"
    assert "CHECKPOINT" in fails(*fresh, "--bn-recalibrate", "--out", other)
    legr(*fresh, "--epochs", 1, "--out", other)
    again = fails("finetune", other, *fresh[1:], "--bn-recalibrate", "--out", out, "--force")
    assert "has no BatchNorm" in again


def test_large_images_are_read_from_their_files(tmp_path: Path) -> None:
    """With loader processes, and without: the same weights."""
    for label in range(2):
        for row in range(6):
            path = tmp_path / "images" / "train" / str(label) / f"{row}.jpg"
            paint(path, (120, 110), seed=9 * label + row)
    args = ("finetune", "--arch", "digits_net:build", "--input", "3x112x112", "--epochs", 1)
    args = (*args, "--data", f"folder:{tmp_path / 'images'}", "--batch-size", 4)
    found = []
    for loaders in (0, 2):
        out = tmp_path / f"{loaders}.safetensors"
        legr(*args, "--loaders", loaders, "--out", out)
        found.append(tensors(out))
    assert same(*found)


def torchrun(*args: object) -> subprocess.CompletedProcess:
    """Two processes of a command or a script."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, *(str(arg) for arg in args)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_two_processes_end_as_one(pruned: Path, tmp_path: Path) -> None:
    """The same accuracy within noise; one process writes and prints; killed, it goes on."""
    alone, out = tmp_path / "alone.safetensors", tmp_path / "both.safetensors"
    args = ("finetune", pruned, *TUNE, "--epochs", 8, "--json")
    one = json.loads(legr(*args, "--out", alone))
    done = torchrun("-m", "legr_cli", *args, "--out", out)
    assert done.returncode == 0, done.stderr
    two = json.loads(done.stdout)
    assert done.stderr.count("2 processes with 64 images per batch each") == 1
    assert abs(one["test"]["accuracy"] - two["test"]["accuracy"]) < 0.05
    assert two["test"]["images"] == 360
    again = json.loads(legr("evaluate", out, *TUNE, "--json"))["scores"][0]
    assert again["accuracy"] == two["test"]["accuracy"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".jsonl"}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (9, "--batch-size 9 .*a multiple of 4, at least 8"),
        (4, "--batch-size 4 .*a multiple of 4, at least 8"),
        (2000, "--batch-size 2000 is larger than .*1295"),
    ],
)
def test_batches_that_processes_cannot_share(batch: int, message: str) -> None:
    data, four = open_data("digits", (3, 32, 32), seed=0), ProcessGroup(torch.device("cpu"), 1, 4)
    with pytest.raises(SettingError, match=message):
        Run(digits_net.build(), data, settings_of("quick", batch_size=batch), four)


RANKS = """
import json, sys
from dataclasses import replace
import torch
from legr_cli.models.registry import Arch, build
from legr_cli.models.card import card_of
from legr_cli.models.checkpoints import fingerprint
from legr_cli.data.dataset import open_data
from legr_cli.training.run import Run
from legr_cli.training.recipes import settings_of
from legr_cli.training.process_group import process_group

torch.set_num_threads(1)
found = {}
with process_group("cpu") as group:
    for arch in ("digits_net:build", "digits_net:normless"):
        data = open_data("digits", (3, 32, 32), seed=0)
        settings = settings_of("quick", epochs=2, ema=0.9 if arch.endswith("build") else 0.0)
        run = Run(build(Arch(arch), group.rank), data, settings, group)
        run.synchronize()
        while not run.is_finished:
            run.train_epoch(lambda _: None)
        found[arch] = fingerprint(run.model), fingerprint(run.result), run.best_so_far
        torch.save(run.model.state_dict(), f"{sys.argv[1]}/{arch}.{group.size}.{group.rank}.pt")
with open(f"{sys.argv[1]}/{group.size}.{group.rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.slow
def test_both_processes_have_the_same_weights(tmp_path: Path) -> None:
    """The second begins with others; without BatchNorm they are those of one process, too."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    done = torchrun(script, tmp_path)
    assert done.returncode == 0, done.stderr
    alone = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    first, second = (json.loads((tmp_path / f"2.{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    name = tmp_path / "digits_net:normless"
    one, two = (torch.load(f"{name}.{ranks}.0.pt", weights_only=True) for ranks in (1, 2))
    begun = digits_net.normless()
    for key, tensor in one.items():
        assert torch.allclose(tensor, two[key], atol=1e-5), key
        assert not torch.allclose(tensor, begun.state_dict()[key], atol=1e-3)


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    """The rate rises until nothing holds: the state of the last good epoch stays."""
    out = tmp_path / "t.safetensors"
    args = ("finetune", "--arch", "digits_net:normless", "--input", "3x32x32", "--data", "digits")
    args = (*args, "--epochs", 40, "--lr", 400, "--warmup", 0.95, "--out", out)
    said = fails(*args)
    assert "the loss became NaN or infinite in epoch" in said
    assert "a lower --lr than 400 or --clip 1" in said
    done = len(lines(out)) - 1
    assert 1 <= done < 40
    assert f"the state after epoch {done} is kept" in said
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl", ".state"}
    assert fails(*args, "--resume") == said  # it is where it was


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    args = (*DROPPING, "--epochs", 5000, "--out", out)
    process = spawn("legr_cli", "finetune", *args)
    await_lines(out.with_suffix(".epochs.jsonl"), 3)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=30)
    assert (process.returncode, printed) == (130, "")
    last = said.strip().splitlines()[-1]
    assert last.startswith("legr: interrupted after ")
    assert last.endswith(f"--out {out} --resume")
    assert "Traceback" not in said


def test_two_trainings_do_not_share_a_file(pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    args = ("finetune", pruned, *TUNE, "--epochs", 5000, "--out", out)
    process = spawn("legr_cli", *args)
    try:
        await_lines(out.with_suffix(".epochs.jsonl"), 2)
        assert "another legr finetune is writing" in fails(*args, "--resume")
    finally:
        process.kill()
        process.communicate()


FULL_DISK = """
import resource, signal, sys
from legr_cli.reports.collect import collect
from legr_cli.training import resume
from legr_cli.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
write, count = resume.write_state, 0
def writes(*args):
    global count
    count += 1
    if count == 3:  # from here on, no file may be larger than this
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    write(*args)
resume.write_state = writes
main()
"""


def test_a_full_disk_at_a_checkpoint(pruned: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "t.safetensors", tmp_path / "whole.safetensors"
    args = ["finetune", str(pruned), *TUNE, "--epochs", "5", "--out"]
    command = [sys.executable, "-c", FULL_DISK, *args, str(out)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in this process: sums depend on threads
    done = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert done.returncode == 1, done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert "the state after epoch 2 is kept; free some space and pass --resume" in said
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"t.state", "t.epochs.jsonl"}
    legr(*args, out, "--resume")
    legr(*args, whole)
    assert same(tensors(out), tensors(whole))


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no network": ((), "pass a CHECKPOINT, or --arch"),
    "recipe": (("--recipe", "fast"), "--recipe fast: expected quick, repaired, match"),
    "epochs": (("--epochs", "0"), "--epochs must be at least 1, got 0"),
    "cuda": (("--device", "cuda"), "--device cuda: torch finds 0 CUDA devices"),
    "both": (("--resume", "--force"), "--resume and --force cannot be combined"),
    "temperature": (("--temperature", "2"), "--temperature requires --teacher"),
    "teacher": (("--teacher", "nowhere.pth"), "--teacher: nowhere.pth does not exist"),
    "batch": (("--batch-size", "1"), "--batch-size must be at least 2, got 1"),
    "data": (("--data", "folder:nowhere"), "nowhere"),
    "drops": (("--drops", "5,x"), "--drops 5,x: expected epochs such as 18,36,48, or none"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, pruned: Path, tmp_path: Path) -> None:
    args, message = BAD[name]
    network = () if name == "no network" else (pruned, "--arch", "digits_net:build")
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    said = fails(
        "finetune", *network, "--data", "digits", *args, "--out", tmp_path / "t.safetensors"
    )
    assert message in said
    assert not list(tmp_path.iterdir())


def test_classes_unlike_the_data(weights: Path, pruned: Path, tmp_path: Path) -> None:
    for label in range(3):
        for row in range(4):
            paint(tmp_path / "three" / "train" / str(label) / f"{row}.png", seed=9 * label + row)
    data, out = f"folder:{tmp_path / 'three'}", tmp_path / "t.safetensors"
    said = fails("finetune", pruned, *TUNE[:2], "--data", data, "--out", out)
    assert "the network has 10 outputs" in said
    assert "has 3 classes" in said
    fresh = ("--arch", "resnet20", "--data", data, "--out", out)
    said = fails("finetune", *fresh, "--teacher", weights, "--teacher-arch", "digits_net:build")
    assert said.startswith("legr: --teacher: ")
    assert "10x48 in the file, 3x48 in the network" in said
    said = fails("finetune", *fresh, "--teacher", "random:resnet32")
    assert "--teacher: the network has 10 outputs" in said
    (tmp_path / "three" / "train" / "1" / "2.png").write_bytes(b"no image")
    said = fails("finetune", *fresh)
    assert "2.png is not a readable image" in said
    assert not out.exists()


def test_a_new_head(weights: Path, pruned: Path, tmp_path: Path) -> None:
    """Its last layer is new, all else is what it was: at a rate of almost 0 it stays so."""
    for label in range(3):
        for row in range(4):
            paint(tmp_path / "three" / "train" / str(label) / f"{row}.png", seed=9 * label + row)
    args = ("--data", f"folder:{tmp_path / 'three'}", "--new-head", "--lr", 1e-9, "--epochs", 1)
    out = tmp_path / "t.safetensors"
    legr("finetune", weights, *NET, *args, "--out", out)
    network = open_network(str(out), "digits_net:build")
    assert network.arch.classes == 3
    found, before = network.model.state_dict(), torch.load(weights, weights_only=True)
    assert found["11.weight"].shape == (3, 48)
    for name in ("0.weight", "3.weight", "6.weight"):
        assert torch.allclose(found[name], before[name], atol=1e-6)
    again = (*NET[:2], *args, "--out", tmp_path / "u.safetensors")
    assert "--new-head needs a dense network" in fails("finetune", pruned, *again)
    legr("finetune", out, *again, "--seed", 1)  # as many classes, but others
    new = tensors(tmp_path / "u.safetensors")
    assert torch.allclose(new["0.weight"], found["0.weight"], atol=1e-6)
    assert not torch.allclose(new["11.weight"], found["11.weight"], atol=1e-3)
    odd = ("--arch", "digits_net:headless", "--data", "digits", "--new-head", "--epochs", 1)
    legr("finetune", *odd[:4], "--epochs", 1, "--out", tmp_path / "h.safetensors")
    said = fails("finetune", tmp_path / "h.safetensors", *odd, "--out", tmp_path / "i.safetensors")
    assert "has no last layer that depends on num_classes alone" in said


def test_a_state_that_is_damaged_or_of_another_training(pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    args = ("finetune", pruned, *TUNE, "--epochs", 3, "--out", out)
    legr(*args)
    state = out.with_suffix(".state")
    state.write_bytes(b"x" * 100)
    assert "t.state is damaged" in fails(*args, "--resume")
    state.write_bytes(pruned.read_bytes())
    assert "t.state is not a state file" in fails(*args, "--resume")
    state.unlink()
    out.unlink()
    legr(*args, "--resume")  # nothing to go on from: all of it again
    assert [line["epoch"] for line in lines(out)[1:]] == [1, 2, 3]
    journal = out.with_suffix(".epochs.jsonl")
    journal.unlink()
    assert "t.epochs.jsonl is missing" in fails(*args, "--resume")


def test_the_recipes_are_shown() -> None:
    table = legr("finetune", "--recipes")
    for text in ("0.1, ÷5 at 60/120/160", "0.01, ÷10 at 18/36/48", "0.01, ÷10 at 30/45"):
        assert text in table
    assert "0.01, ÷5 at 120/240/320" in table
    assert re.search(r"birds +60 +0.01, ÷10 at 18/36/48 +20 ", table)
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.slow
def test_compiled(tmp_path: Path) -> None:
    """The same weights as without, to rounding; only where there is a compiler."""
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    plain, out = tmp_path / "plain.safetensors", tmp_path / "compiled.safetensors"
    args = (
        "finetune",
        "--arch",
        "digits_net:tiny",
        "--data",
        "digits",
        "--epochs",
        1,
        "--lr",
        0.01,
    )
    legr(*args, "--out", plain)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels")}
    process = spawn("legr_cli", *args, "--compile", "--out", out, env=env)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert list((tmp_path / "kernels").rglob("*.cpp"))
    one, two = tensors(plain, "digits_net:tiny"), tensors(out, "digits_net:tiny")
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], atol=1e-4), name


def test_amp_is_left_out_where_it_does_not_help(
    pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    out = tmp_path / "t.safetensors"
    args = ["finetune", str(pruned), *TUNE, "--epochs", "1", "--amp", "--out", str(out)]
    result = runner.invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "ignoring --amp" in result.stderr
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    result = runner.invoke(app, [*args, "--force"])
    assert result.exit_code == 0, result.output
    assert "ignoring" not in result.stderr
    assert open_network(str(out), "digits_net:build").notes["training"]["settings"]["amp"]


def test_frozen_weights_stay_frozen(tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    legr("finetune", "--arch", "digits_net:frozen", "--data", "digits", "--epochs", 2, "--out", out)
    before = open_network("random:digits_net:frozen").model.state_dict()
    after = tensors(out, "digits_net:frozen")
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert "0.weight" not in changed
    assert {"3.weight", "6.weight", "11.weight"} <= changed


ODD = {
    "tuple_in_training": "the network cannot be trained: ",
    "parameterless": "the network has no parameters to train",
    "detached": "the network cannot be trained: element 0 of tensors does not require grad",
    "with_extra_state": "'_extra_state' in the network's state dict is not a tensor",
    "raising": "the network fails on images of shape 2x3x32x32: 'boom'",
}


@pytest.mark.parametrize("name", ODD)
def test_networks_that_cannot_be_trained(name: str, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    said = fails("finetune", "--arch", f"digits_net:{name}", "--data", "digits", "--out", out)
    assert ODD[name] in said
    assert not out.exists()


def test_odd_networks_that_can(tmp_path: Path) -> None:
    """Tensors kept from the first image, in half precision, and buffers that share their memory."""
    for name in ("caching", "halved", "viewing"):
        out = tmp_path / f"{name}.safetensors"
        args = ("--arch", f"digits_net:{name}", "--data", "digits", "--epochs", 1)
        said = json.loads(legr("finetune", *args, "--out", out, "--json"))
        again = legr("evaluate", out, *args[:4], "--json")
        assert json.loads(again)["scores"][0]["accuracy"] == said["test"]["accuracy"]


def test_a_state_is_checked_before_it_is_used(
    pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line and tensor that a training goes on with, changed: one line, nothing lost."""
    out = tmp_path / "t.safetensors"
    args = ["finetune", str(pruned), *TUNE, "--epochs", "5", "--out", str(out)]
    write = resume.write_state

    def stopped(*parts: object) -> None:
        write(*parts)  # type: ignore[arg-type]
        if parts[2] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(resume, "write_state", stopped)
        assert runner.invoke(app, args).exit_code == 130
    journal, state = out.with_suffix(".epochs.jsonl"), out.with_suffix(".state")
    text, packed = journal.read_text(), state.read_bytes()
    for change in ('"seconds": "x"', '"seconds": 1e999', '"loss": []', '"accuracy": 1e999'):
        key = change.split(":")[0]
        header, first, *rest = text.splitlines()
        broken = re.sub(rf"{key}: [^,}}]+", change, first)
        assert broken != first
        journal.write_text("\n".join([header, broken, *rest]) + "\n")
        assert "line 2 is damaged" in fails(*args, "--resume")
    journal.write_text(re.sub(r'"before": {[^}]*}', '"before": null', text, count=1))
    assert "is not a legr-epochs file" in fails(*args, "--resume")
    journal.write_text(text.splitlines()[0] + "\n")
    assert "does not belong to the training in t.epochs.jsonl" in fails(*args, "--resume")
    journal.write_text(text)
    with safe_open(state, "pt") as file:
        notes = file.metadata()
    found = load_file(state)
    other = {"model.0.weight": torch.zeros(2), "best.0.weight": found["best.0.weight"].double()}
    for name, tensor in other.items():
        save_file({**found, name: tensor}, state, notes)
        assert f"does not match this network at '{name}'" in fails(*args, "--resume")
    state.write_bytes(packed)
    legr(*args, "--resume")
    assert [line["epoch"] for line in lines(out)[1:]] == [1, 2, 3, 4, 5]


def test_a_tuned_network_is_one_of_legrs_own(tmp_path: Path) -> None:
    """No --arch is needed for it any more, and it can be pruned."""
    out, small = tmp_path / "t.safetensors", tmp_path / "s.safetensors"
    for label in "ab":
        for row in range(4):
            paint(tmp_path / "images" / "train" / label / f"{row}.png", seed=row)
    data = ("--data", f"folder:{tmp_path / 'images'}")
    legr("finetune", "--arch", "resnet20,pad=after", *data, "--epochs", 1, "--out", out)
    legr("prune", out, "--flops", 0.5, "--out", small)
    assert isinstance(legr_cli.load(small), nn.Module)
    assert "2 val images" in legr("evaluate", small, *data, "--split", "val")
