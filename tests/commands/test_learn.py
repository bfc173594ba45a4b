"""`legr learn` and `legr evaluate`, end to end, on the digits inside the package."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import digits_net
import pytest
import torch
from pictures import folders, paint
from running import await_lines, fails, legr, runner, spawn

from legr_cli.cli import app

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
QUICK = ("--fitness", "bn", "--steps", "2", "--flops", "0.3", "--population", "16", "--sample", "4")


def learn(weights: Path, out: Path, *args: object) -> dict:
    """A search that must succeed; the ranking that it wrote."""
    out.parent.mkdir(exist_ok=True)
    assert legr("learn", weights, *NET, *QUICK, "--out", out, *args) == f"{out}\n"
    return json.loads(out.read_text())


def rows(ranking: dict) -> str:
    """α and κ, byte for byte."""
    return json.dumps(ranking["layers"])


def test_same_seed_same_ranking(weights: Path, tmp_path: Path) -> None:
    one = learn(weights, tmp_path / "one" / "r.json", "--candidates", 30)
    two = learn(weights, tmp_path / "two" / "r.json", "--candidates", 30)
    other = learn(weights, tmp_path / "other" / "r.json", "--candidates", 30, "--seed", 1)
    for found, name in ((one, "one"), (two, "two")):
        assert found.pop("seconds") > 0
        assert f"--out {tmp_path / name / 'r.json'}" in found.pop("command")
    assert one == two
    assert rows(one) != rows(other)


def test_what_a_ranking_says(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    found = learn(weights, out, "--candidates", 12, "--align", 1)
    assert found["format"] == "legr-ranking"
    assert found["arch"] == "digits_net:build"
    assert found["input"] == [3, 32, 32]
    assert found["classes"] == 10
    assert found["settings"]["candidates"] == 12
    assert found["settings"]["steps"] == 2
    assert found["data"]["images"] == {"train": 1295, "validation": 142}
    assert found["data"]["split"]["seed"] == 0
    assert found["dense"]["accuracy"] > 0.9
    assert found["best"]["accuracy"] >= found["identity"]["accuracy"]
    assert [(row["name"], row["filters"]) for row in found["layers"]] == [
        ("0", 24),
        ("3", 32),
        ("6", 48),
    ]
    inspected = json.loads(legr("inspect", weights, *NET[:4], "--json"))
    assert found["weights_sha256"] == inspected["sha256"]
    assert found["best"]["flops"] <= 0.3 * inspected["flops"]
    lines = [json.loads(line) for line in (tmp_path / found["history"]).read_text().splitlines()]
    assert [line["candidate"] for line in lines[1:]] == list(range(12))
    assert lines[1]["accuracy"] == found["identity"]["accuracy"]
    tried = [line for line in lines[1:] if not line["cached"]]
    for line in tried:
        assert line["seconds"] >= line["adapt_seconds"] + line["measure_seconds"] - 1e-3 > 0


def test_learn_then_prune_then_evaluate(weights: Path, tmp_path: Path) -> None:
    """What a user types; the ranking is better than plain norms before any fine-tuning."""
    ranking = tmp_path / "r.json"
    begun = time.monotonic()
    learn(weights, ranking, "--candidates", 150, "--steps", 8)
    assert time.monotonic() - begun < 60
    target = ("--flops", 0.3, "--out")
    learned, plain = tmp_path / "learned.safetensors", tmp_path / "plain.safetensors"
    legr("prune", weights, *NET[:4], "--ranking", ranking, *target, learned)
    legr("prune", weights, *NET[:4], *target, plain)
    scores = {}
    for split in ("val", "test"):
        args = ("--arch", NET[1], *NET[4:], "--recalibrate", "--split", split, "--json")
        said = json.loads(legr("evaluate", learned, plain, *args))
        scores[split] = [row["accuracy"] for row in said["scores"]]
        assert all(row["flops_share"] <= 0.3 for row in said["scores"])
    assert scores["val"][0] > scores["val"][1]
    assert scores["test"][0] > scores["test"][1]
    found = json.loads(ranking.read_text())
    assert scores["val"] == [found["best"]["accuracy"], found["identity"]["accuracy"]]


def test_the_more_a_candidate_adapts_the_better_it_is(weights: Path, tmp_path: Path) -> None:
    scores = {}
    for fitness in ("none", "bn", "finetune"):
        out = tmp_path / f"{fitness}.json"
        args = ("--fitness", fitness, "--steps", 40, "--flops", 0.3, "--candidates", 2, "--json")
        said = json.loads(legr("learn", weights, *NET, *args, "--out", out))
        assert said["settings"]["steps"] == (0 if fitness == "none" else 40)
        scores[fitness] = said["identity"]["accuracy"]
    assert scores["none"] < scores["bn"] < scores["finetune"]


def test_compared_at_two_shares(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    args = ("--candidates", 8, "--population", 4, "--sample", 2, "--align", 1)
    args = (*args, "--flops", "0.3,0.6", "--fitness", "finetune", "--steps", 2, "--resume")
    result = runner.invoke(app, [str(a) for a in ("learn", weights, *NET, *args, "--out", out)])
    assert result.exit_code == 0, result.output
    assert "candidates are compared at 30% and 60% of the FLOPs" in result.stderr
    assert "30% and 60% FLOPs, learned" in result.stderr
    found = json.loads(out.read_text())
    assert found["settings"]["flops"] == [0.3, 0.6]
    low, high = found["best"]["each"]
    assert low <= high
    assert found["best"]["accuracy"] == pytest.approx((low + high) / 2)
    whole = (tmp_path / "r.history.jsonl").read_bytes()
    (tmp_path / "r.history.jsonl").write_bytes(whole[:-700])
    legr("learn", weights, *NET, *args, "--out", out)
    assert rows(json.loads(out.read_text())) == rows(found)
    legr("report", out, "--out", tmp_path / "report.html")
    assert "compared at 30% and 60% of the dense FLOPs" in (tmp_path / "report.html").read_text()
    plain = ("learn", weights, *NET, "--fitness", "finetune", "--out", out, "--resume")
    assert "--flops was [0.3, 0.6], is now 0.2;" in fails(*plain)
    assert "--explorer was evolution, is now surrogate" in fails(*plain[:-5], *plain[-3:])


def test_steps_in_half_precision(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["learn", weights, *NET, "--fitness", "finetune", "--steps", 4, "--candidates", 1]
    args = [str(arg) for arg in (*args, "--population", 1, "--sample", 1, "--json", "--out")]
    losses = {}
    for name, can in (("half", {"avx512_bf16": True}), ("whole", {})):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda can=can: can, raising=False)
        result = runner.invoke(app, [*args, str(tmp_path / f"{name}.json"), "--amp"])
        assert result.exit_code == 0, result.output
        left_out = "ignoring --amp" in result.stderr
        assert left_out is (name == "whole")
        said = json.loads(result.stdout)
        assert said["settings"]["amp"] is (name == "half")
        losses[name] = said["best"]["loss"]
    assert losses["half"] != losses["whole"]
    assert losses["half"] == pytest.approx(losses["whole"], rel=0.05)


def test_a_history_from_before_a_setting_was_known(weights: Path, tmp_path: Path) -> None:
    """An older legr wrote no --amp: without it, the search goes on; with it, it is another."""
    out, history = tmp_path / "r.json", tmp_path / "r.history.jsonl"
    args = (*NET, *QUICK, "--fitness", "finetune", "--candidates", 3)
    legr("learn", weights, *args, "--population", 2, "--sample", 2, "--out", out)
    header, *lines = history.read_text().splitlines(keepends=True)
    header = header.replace('"amp": false, ', "")
    assert '"amp"' not in header
    history.write_text(header + "".join(lines[:2]))
    legr("learn", weights, *args, "--population", 2, "--sample", 2, "--resume", "--out", out)
    assert len(history.read_text().splitlines()) == 4
    other = ("learn", weights, *args, "--population", 2, "--sample", 2, "--resume", "--amp")
    with pytest.MonkeyPatch.context() as here:
        here.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
        assert "--amp was None, is now True" in fails(*other, "--out", out)


def test_two_workers_are_as_reproducible_as_one(weights: Path, tmp_path: Path) -> None:
    args = ("--candidates", 24, "--workers", 2, "--align", 1)
    one = learn(weights, tmp_path / "one.json", *args)
    two = learn(weights, tmp_path / "two.json", *args)
    assert rows(one) == rows(two)
    assert one["best"] == two["best"]


LONG = ("--candidates", 400, "--align", 1)  # more than a fast machine does between 20 kills


def crash_run(weights: str, out: str) -> None:
    """A search in a process that will be killed."""
    torch.set_num_threads(1)
    learn(Path(weights), Path(out), *LONG, "--resume")


@pytest.mark.slow
def test_killed_at_ten_moments_it_ends_the_same(weights: Path, tmp_path: Path) -> None:
    wanted = learn(weights, tmp_path / "whole.json", *LONG)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "test_learn"])
    out, history = tmp_path / "killed.json", tmp_path / "killed.history.jsonl"
    rng, recorded = random.Random(0), [0]
    for kill in range(10):
        process = context.Process(target=crash_run, args=(str(weights), str(out)))
        process.start()
        if kill % 5 == 0:  # anywhere, as a rule before the first candidate
            time.sleep(rng.uniform(0.1, 1.0))
        else:
            await_lines(history, recorded[-1] + rng.randint(2, 6))
            time.sleep(rng.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        recorded.append(history.read_bytes().count(b"\n") if history.exists() else 0)
    assert recorded == sorted(recorded)
    assert 15 < recorded[-1] < 401
    found = learn(weights, out, *LONG, "--resume")
    assert rows(found) == rows(wanted)
    assert found["best"] == wanted["best"]


def test_ctrl_c_says_how_to_go_on(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    args = (*NET, *QUICK, "--candidates", 5000, "--workers", 2, "--out", out)
    process = spawn("legr_cli", "learn", weights, *args, start_new_session=True)
    await_lines(tmp_path / "r.history.jsonl", 4)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    printed, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert printed == ""
    last = said.strip().splitlines()[-1]
    assert last.startswith("legr: interrupted after ")
    assert last.endswith(f"--out {out} --resume")
    assert "Traceback" not in said
    assert not out.exists()
    end = time.monotonic() + 10
    with contextlib.suppress(ProcessLookupError):  # nobody is left behind
        while os.killpg(process.pid, 0) is None:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_killed_worker_costs_a_retry(weights: Path, tmp_path: Path) -> None:
    args = ("--candidates", 60, "--workers", 2, "--align", 1)
    wanted = learn(weights, tmp_path / "whole.json", *args)
    out = tmp_path / "r.json"
    process = spawn("legr_cli", "learn", weights, *NET, *QUICK, *args, "--out", out)
    await_lines(tmp_path / "r.history.jsonl", 8)
    os.kill(max(workers_of(process.pid)), signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "lost a worker" in said
    assert rows(json.loads(out.read_text())) == rows(wanted)


def workers_of(pid: int) -> list[int]:
    """The processes that a forkserver of this process has forked."""
    tree: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(entry.name)
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            tree.setdefault(parent, []).append(number)
    return [worker for server in tree.get(pid, []) for worker in tree.get(server, [])]


@contextlib.contextmanager
def dask(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """A scheduler and workers, started as Dask's documentation says."""
    note = folder / "scheduler.json"
    common = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [sys.executable, "-m", "dask"]
    scheduler = [
        *start,
        "scheduler",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        str(note),
    ]
    started = [subprocess.Popen(scheduler, **common)]
    try:
        end = time.monotonic() + 60
        while not note.exists() or not note.read_text().strip():
            assert time.monotonic() < end
            time.sleep(0.1)
        address = json.loads(note.read_text())["address"]
        for _ in range(workers):
            worker = [*start, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
            started.append(subprocess.Popen(worker, **common))
        yield address, started[1:]
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_two_dask_workers_and_one_is_killed(weights: Path, tmp_path: Path) -> None:
    args = ("--candidates", 60, "--workers", 2, "--align", 1)
    wanted = learn(weights, tmp_path / "local.json", *args)
    out = tmp_path / "r.json"
    (tmp_path / "dask").mkdir()
    with dask(tmp_path / "dask", 2) as (address, workers):
        command = ("legr_cli", "learn", weights, *NET, *QUICK, *args, "--out", out)
        process = spawn(*command, "--cluster", address)
        await_lines(tmp_path / "r.history.jsonl", 10)
        workers[0].kill()
        _, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert rows(json.loads(out.read_text())) == rows(wanted)


def test_progress_is_plain_where_there_is_no_terminal(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = runner.invoke(
        app,
        [
            "learn",
            str(weights),
            *NET,
            *QUICK,
            "--candidates",
            "8",
            "--out",
            str(tmp_path / "r.json"),
        ],
    )
    assert "candidate 8/8  best " in result.stderr
    assert "0:00:00 left" in result.stderr
    assert "next: legr prune" in result.stderr
    assert "\x1b" not in result.stderr


def test_resume_goes_on_and_force_begins_anew(weights: Path, tmp_path: Path) -> None:
    out, history = tmp_path / "r.json", tmp_path / "r.history.jsonl"
    learn(weights, out, "--candidates", 10)
    whole = history.read_bytes()
    history.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    again = runner.invoke(
        app,
        ["learn", str(weights), *NET, *QUICK, "--candidates", "10", "--out", str(out), "--resume"],
    )
    assert again.exit_code == 0
    assert "resuming after 4 of 10 candidates" in again.stderr
    learn(weights, out, "--candidates", 5, "--force")
    assert history.read_bytes().count(b"\n") == 6


def in_the_way(folder: Path) -> None:
    (folder / "r.json").write_text("{}")


def stopped(folder: Path) -> None:
    (folder / "r.history.jsonl").write_text("")


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "classes": (("--classes", "7"), "pass --classes 10"),
    "flops": (("--flops", "0.001"), "cannot be reached: the lowest is"),
    "flops of two": (("--flops", "2"), "--flops must be over 0 and at most 1"),
    "population": (("--population", "8", "--sample", "9"), "--population 8 is smaller than"),
    "workers": (("--workers", "0"), "--workers must be at least 1, got 0"),
    "candidates": (("--candidates", "0"), "--candidates must be at least 1"),
    "mutate": (("--mutate", "1.5"), "--mutate is a fraction"),
    "sigma": (("--sigma", "nan"), "--sigma must be positive"),
    "fitness": (("--fitness", "loss"), "--fitness must be finetune or bn or repair or none"),
    "start": (("--start", "zero"), "--start must be auto or identity or level or sensitivity"),
    "device": (("--device", "toaster"), "--device toaster: expected auto"),
    "no such gpu": (("--device", "cuda:9"), "--device cuda:9: torch finds"),
    "out": (("--out", "ranking.txt"), "ends in .json"),
    "folder": (("--out", "no/such/r.json"), "does not exist; create it first"),
    "both": (("--resume", "--force"), "cannot be combined"),
    "data": (("--data", "folder:no/such"), "is not a folder"),
    "normalize": (("--normalize", "x"), "--normalize x: expected"),
    "a huge seed": (("--seed", "9" * 30), "--seed must be at most"),
    "a huge batch": (("--batch-size", "9" * 12), "--batch-size must be at most"),
    "a long name": (("--out", "x" * 300 + ".json"), "200 bytes at most"),
    "a long folder": (("--data", "folder:" + "x" * 300), "File name too long"),
    "nobody's home": (("--data", "folder:~nobody-at-all/x"), "--data folder:~nobody-at-all/x: "),
    "no cluster": (("--cluster", ""), "does not respond"),
    "metric": (
        ("--metric", "size"),
        "--metric size: expected squared-norm, folded-norm, taylor, reconstruction",
    ),
    "explorer": (
        ("--explorer", "amc"),
        "--explorer amc: expected surrogate, evolution, cmaes, random",
    ),
    "objective": (("--objective", "sum"), "--objective sum: expected mean, log, score"),
    "no divergences": (("--objective", "log"), "which only --fitness repair measures: use mean"),
    "a falling range": (("--flops", "0.8:0.2"), "--flops 0.8:0.2: a range goes up from FROM to TO"),
    "an empty range": (("--flops", "0.4:0.4"), "--flops 0.4:0.4: a range goes up from FROM to TO"),
    "minutes and candidates": (
        ("--minutes", "1", "--candidates", "9"),
        "--minutes decides how many candidates there are: leave --candidates out",
    ),
    "no minutes": (("--minutes", "0"), "--minutes must be at least 0.01, got 0"),
    "minutes and sigma": (
        ("--minutes", "1", "--sigma-end", "0.2"),
        "--sigma-end needs --candidates",
    ),
    "reject": (("--reject-above", "0.9"), "--reject-above must be over 1, or 0 to measure all"),
    "val images": (("--val-images", "0"), "--val-images must be at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    case: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, message = BAD[case]
    result = runner.invoke(app, ["learn", str(weights), *NET, *QUICK, "--out", "r.json", *args])
    assert result.exit_code == 1, result.output
    [line] = result.stderr.strip().splitlines()[-1:]
    assert line.startswith("legr: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prepare", [in_the_way, stopped])
def test_what_is_in_the_way_stays(prepare, weights: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    result = runner.invoke(app, ["learn", str(weights), *NET, "--out", str(tmp_path / "r.json")])
    assert result.exit_code == 1
    assert "already exists" in result.stderr
    assert "--resume" in result.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_other_classes_than_the_data(tmp_path: Path) -> None:
    args = (
        "random:resnet20",
        "--classes",
        "7",
        "--data",
        "digits",
        "--out",
        str(tmp_path / "r.json"),
    )
    result = runner.invoke(app, ["learn", *args])
    assert result.exit_code == 1
    assert "has 7 outputs, but digits has 10 classes" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_batchnorm_for_bn(tmp_path: Path) -> None:
    args = ("random:vgg11", "--classes", "10", "--input", "3x32x32", "--data", "digits")
    result = runner.invoke(
        app, ["learn", *args, "--fitness", "bn", "--out", str(tmp_path / "r.json")]
    )
    assert result.exit_code == 1
    assert "has no BatchNorm" in result.stderr


def test_a_cluster_that_does_not_answer(weights: Path, tmp_path: Path) -> None:
    begun = time.monotonic()
    result = runner.invoke(
        app,
        [
            "learn",
            str(weights),
            *NET,
            "--cluster",
            "tcp://127.0.0.1:9",
            "--out",
            str(tmp_path / "r.json"),
        ],
    )
    assert result.exit_code == 1
    assert "--cluster tcp://127.0.0.1:9 does not respond" in result.stderr
    assert time.monotonic() - begun < 20
    assert list(tmp_path.iterdir()) == []


def test_an_untrained_network_is_noticed(tmp_path: Path) -> None:
    args = ("random:resnet20", "--data", "digits", "--fitness", "none", "--candidates", "1")
    result = runner.invoke(app, ["learn", *args, "--out", str(tmp_path / "r.json")])
    assert result.exit_code == 0, result.output
    assert "no better than chance" in result.stderr


def test_evaluate_needs_test_images(weights: Path, tmp_path: Path) -> None:
    shutil.rmtree(folders(tmp_path) / "test")
    args = ("evaluate", weights, "--arch", NET[1], "--classes", 3, "--data", f"folder:{tmp_path}")
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 1


def test_images_that_are_made_larger_are_noticed(weights: Path, tmp_path: Path) -> None:
    args = ("learn", weights, "--arch", NET[1], "--data", "digits", "--input", "3x48x48")
    result = runner.invoke(
        app, [str(a) for a in (*args, "--candidates", 1, "--out", tmp_path / "r.json")]
    )
    assert result.exit_code == 0, result.output
    assert "pass --input 3x32x32" in " ".join(result.stderr.split())
    prune = ("prune", weights, *NET[:4], "--ranking", tmp_path / "r.json", "--flops", 0.5, "--json")
    said = json.loads(legr(*prune, "--out", tmp_path / "net.safetensors"))
    [note] = [note for note in said["notes"] if "--input" in note]
    assert "--input 3x48x48" in note
    assert note.endswith("3x32x32")


def test_fitness_near_chance_is_noticed(weights: Path, tmp_path: Path) -> None:
    args = ("--fitness", "none", "--flops", "0.1", "--candidates", "1", "--align", "1")
    result = runner.invoke(
        app, ["learn", str(weights), *NET, *args, "--out", str(tmp_path / "r.json")]
    )
    assert "close to chance" in result.stderr


ODD = """
import sys, torch
from torch import nn
from digits_net import build as plain
def drop(num_classes=10):
    return nn.Sequential(plain(num_classes)[:9], nn.Dropout(0.5), *plain(num_classes)[9:])
def frozen(num_classes=10):
    return plain(num_classes).requires_grad_(False)
def half(num_classes=10):
    return plain(num_classes).half()
def loud(num_classes=10):
    print("here I am")
    return plain(num_classes)
def leaving(num_classes=10):
    sys.exit(0)
class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = plain()
    def forward(self, x):
        return self.inner(x)[0]
def moody(num_classes=10):
    return Moody()
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Factories of odd networks, in the current folder."""
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def odd_learn(name: str, *args: object) -> tuple[int, str, str]:
    command = ("learn", f"random:odd:{name}", "--input", "3x32x32", "--data", "digits", "--json")
    few = ("--steps", 2, "--candidates", 2, "--align", 1, "--flops", 0.5)
    result = runner.invoke(app, [str(arg) for arg in (*command, *few, *args)])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", ["drop", "frozen", "half", "loud"])
def test_odd_networks_are_learned_and_repeat(odd: Path, name: str) -> None:
    found = []
    for out in ("one.json", "two.json"):
        code, printed, said = odd_learn(name, "--out", out)
        assert code == 0, said
        found.append(json.loads(printed)["best"])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaving", "cannot build --arch odd:leaving: 0"),
        ("moody", "one tensor of images × classes"),
        ("nobody", "cannot import --arch odd:nobody"),
    ],
)
def test_odd_networks_that_cannot_be_learned(odd: Path, name: str, message: str) -> None:
    code, printed, said = odd_learn(name, "--out", "r.json")
    assert (code, printed) == (1, "")
    assert message in said
    assert not (odd / "r.history.jsonl").exists()


def test_a_ranking_without_history_is_not_resumed(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    out.write_text('{"precious": 1}')
    args = ("learn", weights, *NET, *QUICK, "--candidates", 1, "--out", out, "--resume")
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 1
    assert "r.history.jsonl is missing" in result.stderr
    assert out.read_text() == '{"precious": 1}'


def test_changed_images_are_not_resumed(weights: Path, tmp_path: Path) -> None:
    for label in range(10):
        for i in range(10):
            paint(tmp_path / "set" / "train" / f"c{label}" / f"{i}.bmp", seed=10 * label + i)
    out = tmp_path / "r.json"
    spec = ("--data", f"folder:{tmp_path / 'set'}", "--candidates", 3)
    learn(weights, out, *spec)
    paint(tmp_path / "set" / "train" / "c3" / "4.bmp", seed=999)  # of the same size
    args = ("learn", weights, *NET, *QUICK, "--out", out, *spec, "--resume")
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 1
    assert "different search: the data" in result.stderr


def test_large_images_in_two_workers(weights: Path, tmp_path: Path) -> None:
    """They are read by loader processes of each worker; killed, nobody is left."""
    net = tmp_path / "net.pth"
    torch.save(digits_net.build(3).state_dict(), net)
    folders(tmp_path / "set", size=(110, 110))
    args = ("--arch", NET[1], "--classes", 3, "--input", "3x100x100", "--workers", 2, *QUICK)
    spec = ("--data", f"folder:{tmp_path / 'set'}", "--out", tmp_path / "r.json")
    process = spawn(
        *("legr_cli", "learn", net, *args, *spec, "--candidates", 500, "--align", 1),
        start_new_session=True,
    )
    await_lines(tmp_path / "r.history.jsonl", 4)
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    with contextlib.suppress(ProcessLookupError):
        while os.killpg(process.pid, 0) is None:
            assert time.monotonic() < end, "a process is left behind"
            time.sleep(0.1)


def test_a_network_that_gives_no_numbers(tmp_path: Path) -> None:
    model = digits_net.build()
    torch.nn.init.constant_(model[-1].bias, float("nan"))
    torch.save(model.state_dict(), tmp_path / "nan.pth")
    args = ("--candidates", 1, "--align", 1)
    found = learn(tmp_path / "nan.pth", tmp_path / "r.json", *args)
    assert found["dense"]["loss"] is None
    assert found["best"]["loss"] is None
