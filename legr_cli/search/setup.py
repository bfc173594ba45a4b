"""A search, ready to start: network and images that fit, and what is recorded of them."""

import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, Part
from legr_cli.errors import SettingError
from legr_cli.journal import Line
from legr_cli.models.network import own_copy
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import Ranking, identity
from legr_cli.search.evaluator import CandidateEvaluator, Job, Protocol, packed
from legr_cli.search.evolution import Strategy
from legr_cli.search.explorers import EXPLORERS
from legr_cli.search.fitness import adaptation
from legr_cli.search.run import SearchResult
from legr_cli.search.workers import WorkerPool, in_process, on_cluster, processes
from legr_cli.settings import Search
from legr_cli.training.devices import choose, cores
from legr_cli.training.loop import evaluate, has_statistics
from legr_cli.training.scores import CLASSIFICATION, Score, Task
from legr_cli.version import __version__


@dataclass(frozen=True)
class SearchSetup:
    """What is searched, and with what."""

    analysis: Analysis
    data: Data
    settings: Search
    device: str
    method: str = "legr"
    explorer: str = "evolution"
    task: Task = CLASSIFICATION

    @property
    def header(self) -> Line:
        """First line of the journal: another search has another header."""
        other = {} if self.method == "legr" else {"method": self.method}
        task = {} if self.task is CLASSIFICATION else {"task": self.task.name}
        return {**other, **subject(self.analysis, self.data, _as_json(self.settings)), **task}

    @property
    def strategy(self) -> Strategy:
        """How candidates are proposed, from the start."""
        return EXPLORERS[self.explorer](self.analysis, self.settings)

    @property
    def protocol(self) -> Protocol:
        """How every candidate is adapted and measured."""
        images = self.data.train, self.measured_on
        return Protocol(*images, self.data.feed, self.settings, self.device, self.task)

    @property
    def measured_on(self) -> Part:
        """The held-out images, or as many of them as the settings allow."""
        part, limit = self.data.validation, self.settings.val_images
        if len(part) <= limit:
            return part
        rows = np.random.default_rng(self.settings.seed).permutation(len(part))[:limit]
        return part.pick(np.sort(rows))

    def job(self) -> Job:
        """What a worker process needs."""
        network = self.analysis.network
        if network.arch.factory is not None or (network.arch.own and ":" not in network.arch.name):
            raise SettingError(
                "workers in other processes need arch='module:factory' to rebuild the network: "
                "pass arch, or workers=1"
            )
        arch = network.arch.name if network.arch.own else None
        key = hashlib.sha256(json.dumps(self.header).encode()).hexdigest()
        return Job(key, packed(network), arch, self.protocol)

    def pool(self, client: Any = None) -> WorkerPool:
        """Workers: on a cluster, in processes, or this process itself."""
        if client is not None:
            return on_cluster(self.job(), client)
        choose(self.device)  # a missing device is an error now, not in a worker
        if self.settings.workers == 1:
            return in_process(
                lambda: CandidateEvaluator(self.analysis.units, self.protocol).evaluate
            )
        threads = max(1, cores() // self.settings.workers)
        return processes(self.job(), self.settings.workers, threads)

    def dense(self, remote: bool = False) -> Score:
        """Score of the dense network, on the images that candidates are measured on."""
        device = choose("auto" if remote else self.device)  # a cluster's device may not be here
        model = self.analysis.network.model
        if device.type != "cpu":
            model = own_copy(model).to(device)
        serving = Serving(self.data.feed, 250, device)
        return evaluate(model, in_order(self.measured_on, serving), self.task)

    def candidate_images(self) -> int:
        """Images that the network sees for one candidate."""
        assert self.settings.steps is not None
        once = self.settings.steps * self.settings.batch_size + len(self.measured_on)
        return once * len(self.settings.flops)

    def ranking(self, found: SearchResult, dense: Line, history: str) -> Ranking:
        """What was found, with all that ranking.json records besides its rows."""
        settings = _as_json(self.settings)
        notes = {
            **provenance(self.analysis, self.data, settings, self.settings.seed, dense),
            **({"identity": _reached(found.first)} if _is_identity(found.first) else {}),
            "best": _reached(found.best),
            "history": history,
            "made_with": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }
        return replace(found.ranking, method=self.method, notes=notes)


def subject(analysis: Analysis, data: Data, settings: Line) -> Line:
    """What a journal is about: other work has another subject."""
    network = analysis.network
    return {
        "arch": str(network.arch),
        "input": list(network.input_shape),
        "weights_sha256": analysis.sha256,
        "settings": settings,
        "data": data.card,
        "statistics": data.feed.statistics,
        **({} if data.as_before else {"pictures": data.pictures}),
    }


def provenance(analysis: Analysis, data: Data, settings: Line, seed: int, dense: Line) -> Line:
    """What every ranking.json records of the network and the images that it came from."""
    network = analysis.network
    about = {"pictures": data.pictures, "class_names": data.class_names}
    return {
        "legr": __version__,
        "arch": network.arch.name,
        "options": network.arch.options,
        "classes": len(data.classes),
        "input": list(network.input_shape),
        "weights_sha256": analysis.sha256,
        "data": data.card,
        "statistics": data.feed.statistics,
        **{key: value for key, value in about.items() if value},
        "settings": settings,
        "seed": seed,
        "dense": dense,
    }


def check_reach(analysis: Analysis, settings: Search) -> None:
    """Check that every share is within reach, and that the fitness suits the network."""
    plans(analysis, identity(analysis.filters), settings.cut)
    check_fitness(analysis, settings.fitness)


def check_fitness(analysis: Analysis, fitness: str) -> None:
    """Check that a fitness suits the network."""
    needs_batchnorm = adaptation(fitness).needs_batchnorm
    if needs_batchnorm and not has_statistics(analysis.network.model):
        raise SettingError(
            f"--fitness {fitness}: this network has no BatchNorm layers; use --fitness finetune "
            "or none"
        )


def _as_json(settings: Search) -> dict[str, Any]:
    """Settings as JSON has them."""
    flops = settings.flops if len(settings.flops) > 1 else settings.flops[0]
    return {**dataclasses.asdict(settings), "flops": flops, "align": settings.align.name}


def _is_identity(line: Line) -> bool:
    """Whether a candidate is α = 1, κ = 0."""
    return set(line.get("alpha", ())) == {1.0} and set(line.get("kappa", ())) == {0.0}


def _reached(line: Line) -> Line:
    """What a candidate reached, without how long it took."""
    keys = ("candidate", "accuracy", "each", "loss", "flops")
    return {key: line[key] for key in keys if key in line}
