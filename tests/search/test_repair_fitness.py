"""`--fitness repair`: candidates are repaired, and ranked by how far they are from the network."""

import itertools
import json
from pathlib import Path

import digits_net
import nets
import pytest
import torch
from running import legr
from torch import Tensor, nn

import legr_cli
from legr_cli.channels import apply
from legr_cli.data.dataset import open_data
from legr_cli.errors import ModelError
from legr_cli.journal import journal
from legr_cli.models.network import open_network
from legr_cli.pruning import analyze
from legr_cli.repairs import lockstep
from legr_cli.repairs.closeness import divergences
from legr_cli.search.evaluator import CandidateEvaluator
from legr_cli.search.fitness import with_steps
from legr_cli.search.history import HISTORY
from legr_cli.search.lines import fitness_of
from legr_cli.search.run import search
from legr_cli.search.setup import SearchSetup
from legr_cli.search.workers import WorkerPool, in_process
from legr_cli.settings import Align, Search

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
QUICK = ("--fitness", "repair", "--batch-size", 32, "--flops", 0.4, "--align", 1)
SMALL = ("--candidates", 8, "--population", 4, "--sample", 2)


def learned(weights: Path, out: Path, *args: object) -> dict:
    """A search that must succeed; the ranking that it wrote."""
    legr("learn", weights, *NET, *QUICK, *SMALL, "--out", out, *args)
    return json.loads(out.read_text())


def told(ranking: dict) -> str:
    """What must be the same, byte for byte."""
    return json.dumps([ranking["layers"], ranking["best"], ranking["identity"]])


def test_same_seed_same_ranking_also_when_resumed(weights: Path, tmp_path: Path) -> None:
    whole = learned(weights, tmp_path / "whole.json")
    history = tmp_path / "whole.history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()[1:]]
    assert min(line["divergence"] for line in lines) == whole["best"]["divergence"]
    assert whole["best"]["divergence"] < whole["identity"]["divergence"]
    assert whole["settings"]["steps"] == 2
    content = history.read_bytes()
    (tmp_path / "cut.history.jsonl").write_bytes(content[: len(content) // 2])
    assert told(learned(weights, tmp_path / "cut.json", "--resume")) == told(whole)


@pytest.fixture(scope="module")
def setup(weights: Path) -> SearchSetup:
    shape = (3, 32, 32)
    network = open_network(str(weights), "digits_net:build", input_shape=shape)
    settings = Search(
        candidates=8,
        population=4,
        sample=2,
        fitness="repair",
        flops=(0.4,),
        align=Align(),
        batch_size=32,
        workers=2,
    )
    data = open_data("digits", shape, seed=0)
    return SearchSetup(analyze(network), data, with_steps(settings), "cpu")


def test_two_worker_processes_give_what_one_process_does(
    setup: SearchSetup, tmp_path: Path
) -> None:
    def run(name: str, pool: WorkerPool) -> list[dict]:
        with journal(tmp_path / name, HISTORY, setup.header, False) as book:
            parts = setup.analysis, setup.settings, setup.strategy, pool, book
            search(*parts, lambda _: None, lambda _: None)
            pool.shutdown()
            lines = [book.lines[number] for number in range(8)]
        keys = ("divergence", "accuracy", "loss", "plan", "alpha", "kappa")
        return [{key: line[key] for key in keys} for line in lines]

    def here() -> WorkerPool:
        return in_process(lambda: CandidateEvaluator(setup.analysis.units, setup.protocol).evaluate)

    assert run("two", setup.pool()) == run("one", here())


def test_the_divergence_is_that_of_the_repaired_network_on_the_validation_images(
    setup: SearchSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the dense network's values are not kept."""
    units = setup.analysis.units
    kept = units.without_empty_tensors(torch.rand(units.count).numpy() < 0.7)
    evaluator = CandidateEvaluator(units, setup.protocol)
    [found] = evaluator.evaluate((kept,))
    assert evaluator.reference is not None
    smaller = apply(units, kept)
    evaluator.reference.repair(smaller, kept)
    images = setup.protocol.validation
    batches = [x for x, _ in evaluate_batches(setup)]
    assert sum(map(len, batches)) == len(images)
    [cut, repaired] = divergences([apply(units, kept), smaller], units.source.model, batches)
    assert found.divergence == pytest.approx(repaired, rel=1e-6)
    assert repaired < cut
    monkeypatch.setattr(lockstep, "DENSE_MEMORY", 1 << 20)
    monkeypatch.setattr("legr_cli.search.reference.MEMORY", 0)
    [again] = CandidateEvaluator(units, setup.protocol).evaluate((kept,))
    assert again.divergence == found.divergence


def evaluate_batches(setup: SearchSetup) -> list[tuple[Tensor, Tensor]]:
    """The validation images."""
    from legr_cli.data.batches import Serving, in_order

    serving = Serving(setup.protocol.feed, 100, torch.device("cpu"))
    return list(in_order(setup.protocol.validation, serving))


def test_ranks_by_divergence_and_not_by_accuracy() -> None:
    close = {"accuracy": 0.8, "loss": 1.0, "divergence": 0.2}
    right = {"accuracy": 0.9, "loss": 0.5, "divergence": 0.3}
    lost = {"accuracy": 0.0, "loss": None}  # out of reach
    ranked = [close, right, {**right, "divergence": None}, lost]
    fitness = [fitness_of(line, Search(fitness="repair")) for line in ranked]
    assert all(a > b for a, b in itertools.pairwise(fitness))
    by_accuracy = Search(fitness="bn")
    assert fitness_of(right, by_accuracy) > fitness_of(close, by_accuracy)


class Doubled(nn.Conv2d):
    """A convolution whose output is not a plain product with its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_a_network_that_cannot_be_repaired_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = Doubled(3, 13, 3), nn.ReLU(), Doubled(13, 5, 3)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    data = torch.randn(60, *nets.INPUT), torch.arange(60) % 5
    words = r"no layer of this network can be repaired \('0': its output is not a plain product"
    with pytest.raises(ModelError, match=words):
        legr_cli.learn(
            model, data, flops=0.6, fitness="repair", candidates=2, out=tmp_path / "r.json"
        )
    assert list(tmp_path.iterdir()) == []


def test_networks_without_batchnorm_are_fine(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = digits_net.normless().eval()
    data = torch.randn(60, 3, 32, 32), torch.arange(60) % 10
    ranking = legr_cli.learn(model, data, flops=0.6, fitness="repair", candidates=3)
    assert ranking.notes["best"]["divergence"] <= ranking.notes["identity"]["divergence"]
