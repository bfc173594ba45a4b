"""A search made ready: network and images that fit each other, and all that is noted of them."""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from legr_cli import __version__
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, Part
from legr_cli.errors import SettingError
from legr_cli.journal import Line
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import Ranking, identity
from legr_cli.search.fitness import Job, packed
from legr_cli.search.run import SearchResult, Strategy, evolution_strategy
from legr_cli.search.workers import WorkerPool, in_process, on_cluster, processes
from legr_cli.settings import Search
from legr_cli.training.devices import choose, cores
from legr_cli.training.loop import Score, evaluate, has_statistics


@dataclass(frozen=True)
class SearchSetup:
    """What is searched, and with what."""

    analysis: Analysis
    data: Data
    settings: Search
    device: str
    method: str = "legr"
    strategy: Callable[[Analysis, Search], Strategy] = evolution_strategy

    def header(self) -> Line:
        """What the journal says was searched: another search has another header."""
        other = {} if self.method == "legr" else {"method": self.method}
        return {**other, **subject(self.analysis, self.data, _plain(self.settings))}

    def job(self) -> Job:
        """What a worker needs."""
        network = self.analysis.network
        arch = network.arch.name if network.arch.own else None
        parts = self.data.train, _at_most(self.data, self.settings)
        key = hashlib.sha256(json.dumps(self.header()).encode()).hexdigest()
        return Job(key, packed(network), arch, *parts, self.data.feed, self.settings, self.device)

    def pool(self, client: Any = None) -> WorkerPool:
        """Workers: of a cluster, in processes, or this process itself."""
        if client is not None:
            return on_cluster(self.job(), client)
        choose(self.device)  # a device that is not there is an error now, not in a worker
        if self.settings.workers == 1:
            return in_process(self.job())
        threads = max(1, cores() // self.settings.workers)
        return processes(self.job(), self.settings.workers, threads)

    def dense(self, remote: bool = False) -> Score:
        """What the network reaches as it is, on the images that candidates are measured on."""
        device = choose("auto" if remote else self.device)  # a cluster's device may not be here
        model = self.analysis.network.model.to(device)
        part = _at_most(self.data, self.settings)
        score = evaluate(model, in_order(part, Serving(self.data.feed, 250, device)))
        model.cpu()
        return score

    def ranking(self, found: SearchResult, dense: Line, history: str) -> Ranking:
        """What was found, with all that ranking.json says beside its rows."""
        settings = _plain(self.settings)
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
    """What work is about, for its journal: other work has another subject."""
    network = analysis.network
    return {
        "arch": str(network.arch),
        "input": list(network.input_shape),
        "weights_sha256": analysis.sha256,
        "settings": settings,
        "data": data.card,
        "statistics": data.feed.statistics,
    }


def provenance(analysis: Analysis, data: Data, settings: Line, seed: int, dense: Line) -> Line:
    """What every ranking.json says of the network and the images that it came from."""
    network = analysis.network
    return {
        "legr": __version__,
        "arch": network.arch.name,
        "options": network.arch.options,
        "classes": len(data.classes),
        "input": list(network.input_shape),
        "weights_sha256": analysis.sha256,
        "data": data.card,
        "statistics": data.feed.statistics,
        "settings": settings,
        "seed": seed,
        "dense": dense,
    }


def check_reach(analysis: Analysis, settings: Search) -> None:
    """Every ζ̂ must be within reach, and BatchNorm there where its statistics are wanted."""
    plans(analysis, identity(analysis.filters), settings.cut)
    check_fitness(analysis, settings.fitness)


def check_fitness(analysis: Analysis, fitness: str) -> None:
    """BatchNorm must be there where its statistics are wanted."""
    if fitness == "bn" and not has_statistics(analysis.network.model):
        raise SettingError(
            "--fitness bn: this network has no BatchNorm; use --fitness finetune or none"
        )


def _at_most(data: Data, settings: Search) -> Part:
    """The images to measure on: all that are held out, or as many as were asked for."""
    part = data.validation
    if len(part) <= settings.val_images:
        return part
    rows = np.random.default_rng(settings.seed).permutation(len(part))[: settings.val_images]
    return part.pick(np.sort(rows))


def candidate_images(data: Data, settings: Search) -> int:
    """Images that the network sees for one candidate."""
    once = settings.steps * settings.batch_size + len(_at_most(data, settings))
    return once * len(settings.flops)


def _plain(settings: Search) -> dict[str, Any]:
    """Settings as JSON has them."""
    flops = settings.flops if len(settings.flops) > 1 else settings.flops[0]
    return {**dataclasses.asdict(settings), "flops": flops, "align": settings.align.name}


def _is_identity(line: Line) -> bool:
    """Whether this candidate changes nothing: α = 1, κ = 0."""
    return set(line.get("alpha", ())) == {1.0} and set(line.get("kappa", ())) == {0.0}


def _reached(line: Line) -> Line:
    """What a candidate reached, without how long it took."""
    keys = ("candidate", "accuracy", "each", "loss", "flops")
    return {key: line[key] for key in keys if key in line}
