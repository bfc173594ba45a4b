"""The inputs of a search, and the header and notes that record them."""

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from legr_cli.channels.part import part_or_whole
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, Part
from legr_cli.errors import ModelError, SettingError
from legr_cli.journal import Journal, Line
from legr_cli.metrics.filters import check_metric
from legr_cli.models.network import own_copy
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import Ranking, identity
from legr_cli.repairs.layers import why_not_repairable
from legr_cli.search.evaluator import CandidateEvaluator, Job, Protocol, to_bytes
from legr_cli.search.evolution import Strategy
from legr_cli.search.explorers import EXPLORERS, check_explorer
from legr_cli.search.fitness import adaptation
from legr_cli.search.objectives import check_objective
from legr_cli.search.reference import DenseOutputs
from legr_cli.search.run import UNREACHABLE, SearchProgress, SearchResult, search
from legr_cli.search.sensitivity import measure, sensitive
from legr_cli.search.workers import WorkerPool, in_process, on_cluster, processes
from legr_cli.settings import Search
from legr_cli.shapes import shapes_json
from legr_cli.training.devices import choose, cores
from legr_cli.training.loop import evaluate, has_running_stats
from legr_cli.training.scores import WORST, Score
from legr_cli.training.tasks import CLASSIFICATION, Task, with_targets
from legr_cli.version import __version__


@dataclass(frozen=True)
class SearchSetup:
    """The network to prune, the data, and the settings of the search."""

    analysis: Analysis
    data: Data
    settings: Search
    device: str
    method: str = "legr"
    task: Task = CLASSIFICATION
    sensitivities: tuple[float, ...] = ()  # of each group, for `--start sensitivity`

    @property
    def header(self) -> Line:
        """The first line of the journal; identifies the search."""
        method = {} if self.method == "legr" else {"method": self.method}
        settings = _search_as_json(self.settings)
        about = run_description(self.analysis, self.data, settings)
        return {**method, **about, **self.task.record, **self._measured}

    @property
    def _measured(self) -> Line:
        """What was measured before the search, so that a resumed one need not measure again."""
        rows = identity(self.analysis.filters).rows
        values = {row.name: row.values for row in rows if row.values is not None}
        measured = {"metric_values": values} if values else {}
        return measured | ({"sensitivities": self.sensitivities} if self.sensitivities else {})

    @property
    def strategy(self) -> Strategy:
        """A new explorer that proposes the candidates."""
        start = sensitive(self.analysis, list(self.sensitivities)) if self.sensitivities else None
        return EXPLORERS[self.settings.explorer](self.analysis, self.settings, start)

    def with_sensitivities(self, known: Line | None, report: Callable[[], None]) -> "SearchSetup":
        """The setup of a search with `--start sensitivity`: each group is halved and repaired.

        `known` is the header of the journal that has them already.
        """
        if self.settings.start != "sensitivity":
            return self
        stored = (known or {}).get("sensitivities")
        if stored is None:
            report()
            evaluator = CandidateEvaluator(self.analysis.units, self.protocol)
            stored = measure(self.analysis, lambda kept: evaluator.evaluate((kept,))[0].divergence)
        return replace(self, sensitivities=tuple(stored))

    @property
    def protocol(self) -> Protocol:
        """How all candidates are adapted and scored."""
        images = self.data.train, self.validation
        return Protocol(*images, self.data.feed, self.settings, self.device, self.task)

    @property
    def validation(self) -> Part:
        """The validation images, or a random subset if there are more than `val_images`."""
        part, limit = self.data.validation, self.settings.val_images
        if len(part) <= limit:
            return part
        rows = np.random.default_rng(self.settings.seed).permutation(len(part))[:limit]
        return part.pick(np.sort(rows))

    def job(self) -> Job:
        """Everything a worker process needs."""
        network = self.analysis.network
        if network.arch.factory is not None or (network.arch.own and ":" not in network.arch.name):
            raise SettingError(
                "worker processes need arch='module:factory' to rebuild the network: pass arch, or "
                "workers=1"
            )
        arch = network.arch.name if network.arch.own else None
        key = hashlib.sha256(json.dumps(self.header).encode()).hexdigest()
        return Job(key, to_bytes(network), arch, self.protocol)

    def pool(self, client: Any = None) -> WorkerPool:
        """Create the workers: on a cluster, in processes, or in this process."""
        if client is not None:
            return on_cluster(self.job(), client)
        choose(self.device)  # raise for a missing device here rather than in a worker
        if self.settings.workers == 1:
            return in_process(
                lambda: CandidateEvaluator(self.analysis.units, self.protocol).evaluate
            )
        threads = max(1, cores() // self.settings.workers)
        return processes(self.job(), self.settings.workers, threads)

    def run(
        self,
        book: Journal,
        on_progress: Callable[[SearchProgress], None],
        warn: Callable[[str], None],
        client: Any = None,
    ) -> SearchResult:
        """Search to the end, with workers that are stopped afterwards."""
        pool = self.pool(client)
        try:
            return search(
                self.analysis,
                self.settings,
                self.strategy,
                pool,
                book,
                on_progress,
                warn,
                self.unreachable,
            )
        finally:
            pool.shutdown()

    @property
    def unreachable(self) -> Line:
        """The scores of candidates that cannot reach a target, as journals store them."""
        if self.task.is_classification:
            return UNREACHABLE
        return {"score": WORST, "figures": {}, "loss": None}

    def score_dense(self, remote: bool = False) -> Score:
        """Score the dense network on the images that candidates are scored on."""
        device = choose("auto" if remote else self.device)  # this machine may lack the cluster's
        model = self.analysis.network.model
        if device.type != "cpu":
            model = own_copy(model).to(device)
        batches = in_order(self.validation, Serving(self.data.feed, 250, device))
        if self.task.needs_reference:
            model = part_or_whole(model, self.analysis.network.module)
        reference = DenseOutputs(model, len(self.validation)).of
        score = evaluate(model, with_targets(self.task, batches, reference), self.task)
        if self.task.needs_reference and not math.isfinite(score.loss):
            raise ModelError(
                "the dense network's outputs on the validation images are NaN or infinite: check "
                "its weights and how the images are prepared"
            )
        return score

    def candidate_images(self) -> int:
        """Number of images that are passed through the network to evaluate one candidate."""
        assert self.settings.steps is not None
        per_target = self.settings.steps * self.settings.batch_size + len(self.validation)
        return per_target * len(self.settings.flops)

    def ranking(self, result: SearchResult, dense: Line, history: str) -> Ranking:
        """The ranking found, with the notes that ranking.json stores."""
        settings = _search_as_json(self.settings)
        notes = {
            **provenance(self.analysis, self.data, settings, self.settings.seed, dense),
            **({"identity": _scores(result.first)} if _is_identity(result.first) else {}),
            "best": _scores(result.best),
            "history": history,
            "made_with": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }
        return replace(result.ranking, method=self.method, notes=notes)


def run_description(analysis: Analysis, data: Data, settings: Line) -> Line:
    """The part of a journal's header that identifies network, settings and data."""
    network = analysis.network
    return {
        "arch": str(network.arch),
        "input": shapes_json(network.input_shape),
        **({"module": network.module} if network.module else {}),
        "weights_sha256": analysis.sha256,
        "settings": settings,
        "data": data.card,
        "statistics": data.feed.statistics,
        **({} if data.as_before else {"pictures": data.pictures}),
    }


def provenance(analysis: Analysis, data: Data, settings: Line, seed: int, dense: Line) -> Line:
    """Notes on the network and the images that a ranking was learned from."""
    network = analysis.network
    about = {"pictures": data.pictures, "class_names": data.class_names}
    return {
        "legr": __version__,
        "arch": network.arch.name,
        "options": network.arch.options,
        "classes": len(data.classes),
        "input": shapes_json(network.input_shape),
        **({"module": network.module} if network.module else {}),
        "weights_sha256": analysis.sha256,
        "data": data.card,
        "statistics": data.feed.statistics,
        **{key: value for key, value in about.items() if value},
        "settings": settings,
        "seed": seed,
        "dense": dense,
    }


def check_settings(analysis: Analysis, settings: Search) -> None:
    """Raise if a name is unknown, a FLOPs target out of reach, or the fitness does not suit."""
    check_names(settings)
    plans(analysis, identity(analysis.filters), settings.cut)
    check_fitness(analysis, settings.fitness)


def check_names(settings: Search) -> None:
    """Raise unless metric, explorer and objective are entries of their tables, and fit together."""
    check_metric(settings.metric)
    check_explorer(settings.explorer)
    by_divergence = adaptation(settings.fitness).ranks_by_divergence
    check_objective(settings.objective, by_divergence)
    if settings.start == "sensitivity" and not by_divergence:
        raise SettingError("--start sensitivity measures divergences: it needs --fitness repair")


def can_repair(analysis: Analysis) -> bool:
    """Whether any layer of a network can be repaired."""
    return set(analysis.units.flow.layers) > set(why_not_repairable(analysis.units))


def check_fitness(analysis: Analysis, fitness: str) -> None:
    """Raise if a fitness does not suit the network."""
    needs_batchnorm = adaptation(fitness).needs_batchnorm
    if needs_batchnorm and not has_running_stats(analysis.network.model):
        raise SettingError(
            f"--fitness {fitness}: this network has no BatchNorm layers; use --fitness finetune "
            "or none"
        )


def _search_as_json(settings: Search) -> dict[str, Any]:
    """Search settings as journals and rankings store them."""
    flops = settings.flops if len(settings.flops) > 1 else settings.flops[0]
    values = {**dataclasses.asdict(settings), "flops": flops, "align": settings.align.name}
    layers = dict(values.pop("min_keep_layers"))
    return {**values, "min_keep_layers": layers} if layers else values


def _is_identity(line: Line) -> bool:
    """Whether a candidate is the identity, α = 1 and κ = 0."""
    return set(line.get("alpha", ())) == {1.0} and set(line.get("kappa", ())) == {0.0}


def _scores(line: Line) -> Line:
    """The scores in a candidate's journal line."""
    scores = ("accuracy", "score", "figures", "each", "loss", "divergence", "divergences")
    keys = ("candidate", *scores, "flops")
    return {key: line[key] for key in keys if key in line}
