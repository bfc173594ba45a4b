"""Training, BatchNorm statistics and measuring, in numbers worked out by hand."""

import copy
import ctypes
import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import legr_cli
from legr_cli.data.dataset import open_data
from legr_cli.errors import SearchError, SettingError
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch, build
from legr_cli.pruning import analyze
from legr_cli.search.evaluator import evaluate_candidate
from legr_cli.search.setup import SearchSetup
from legr_cli.settings import Search
from legr_cli.training.devices import choose, keep_memory
from legr_cli.training.loop import Trainer, evaluate, has_running_stats, recalibrate, sgd, train


def test_evaluate() -> None:
    """Logits are the input; the loss of a row is log Σ exp − its label's."""
    logits = torch.tensor([[2.0, 1, 0, 0, 0, 0], [0, 3, 1, 0, 0, 0], [5, 4, 3, 2, 1, 0]])
    labels = torch.tensor([0, 2, 5])
    batches = [(logits[:2], labels[:2]), (logits[2:], labels[2:])]
    score = evaluate(nn.Identity(), batches)
    losses = [
        math.log(math.exp(2) + math.exp(1) + 4) - 2,
        math.log(math.exp(3) + math.exp(1) + 4) - 1,
        math.log(sum(math.exp(i) for i in range(6))) - 0,
    ]
    assert score.value == pytest.approx(1 / 3)
    assert score.figures["top 5"] == pytest.approx(2 / 3)
    assert score.loss == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert score.images == 3


def test_recalibrate_takes_the_mean_over_batches_and_nothing_else() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2).view(2, 2, 1, 1))
        model[0].bias.zero_()
    weights = {name: p.clone() for name, p in model.named_parameters()}
    batches = [torch.randn(5, 2, 3, 3) + i for i in range(3)]
    recalibrate(model, [(batch, torch.zeros(5)) for batch in batches])
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    variances = torch.stack([batch.transpose(0, 1).flatten(1).var(1) for batch in batches]).mean(0)
    assert torch.allclose(model[1].running_mean, means, atol=1e-6)
    assert torch.allclose(model[1].running_var, variances, atol=1e-5)
    assert model[1].momentum == 0.1
    assert not model.training
    assert not model[1].training
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert has_running_stats(model)
    assert not has_running_stats(nn.BatchNorm2d(3, track_running_stats=False))


def test_one_step_of_the_papers_optimiser() -> None:
    """Two classes, logits (w, 0), label 0: the gradient is p − 1, with p = 1 / (1 + e^−w)."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.7], [0.0]]))
    train(Trainer(model, sgd(model, 0.1)), [(torch.ones(1, 1), torch.tensor([0]))])
    p = 1 / (1 + math.exp(-0.7))
    gradient = (p - 1) + 5e-4 * 0.7
    assert model.weight[0].item() == pytest.approx(0.7 - 0.1 * 1.9 * gradient, rel=1e-5)
    assert model.weight[1].item() == pytest.approx(-0.1 * 1.9 * (1 - p), rel=1e-5)
    assert not model.training


def test_devices() -> None:
    assert choose("cpu").type == "cpu"
    assert choose("auto").type in ("cpu", "cuda", "mps")
    for name in ("gpu", "cuda:99", "xpu", ""):
        with pytest.raises(SettingError, match="--device"):
            choose(name)


def test_workers_spread_over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [choose("auto", worker).index for worker in range(5)] == [0, 1, 2, 0, 1]
    assert [choose("cuda", worker).index for worker in range(3)] == [0, 1, 2]
    assert [choose("cuda:1", worker).index for worker in range(3)] == [1, 1, 1]
    with pytest.raises(SettingError, match="3 CUDA devices"):
        choose("cuda:3")


def test_a_worker_of_another_version_is_refused() -> None:
    analysis = analyze(Network(build(Arch("resnet20")), Arch("resnet20"), (3, 32, 32)))
    job = SearchSetup(analysis, open_data("digits", (3, 32, 32), seed=0), Search(), "cpu").job()
    with pytest.raises(SearchError, match=r"a worker has legr .* legr 0\.0\.0"):
        evaluate_candidate(replace(job, legr="0.0.0"), ())


def test_freed_memory_is_kept_unless_the_user_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
    assert keep_memory.__wrapped__() is glibc
    for name in names:
        with monkeypatch.context() as here:
            here.setenv(name, "x")
            assert keep_memory.__wrapped__() is False


def test_without_labels_training_never_harms() -> None:
    """A rate that spoils the network: the weights from before training are kept."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 4)).eval()
    images = torch.rand(24, 3, 8, 8)
    close = copy.deepcopy(dense)
    with torch.no_grad():
        close[3].weight.mul_(1.3)
    options = {"recipe": "quick", "lr": 5.0, "epochs": 2, "batch_size": 8, "outputs": "values"}
    tuned = legr_cli.finetune(close, images, teacher=dense, **options)
    before, after = close.state_dict(), tuned.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    options = {"epochs": 20, "batch_size": 8, "outputs": "values"}
    better = legr_cli.finetune(close, images, teacher=dense, **options)
    measured = {"against": dense, "outputs": "values"}
    found = [legr_cli.evaluate(net, images, **measured).score for net in (close, better)]
    assert found[0] < found[1]
