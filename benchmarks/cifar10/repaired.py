"""The table of repaired networks, from the raw results of run.py."""

import json
from pathlib import Path
from typing import Any

NAMES = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}
RANKINGS = {"norm": "plain norms", "legr": "learned with `--fitness repair`"}


def rows(raw: Path) -> list[list[str]]:
    """For each network, budget and ranking: test accuracies cut, repaired and tuned, in percent."""
    found = []
    for arch, name in NAMES.items():
        folder = raw / "repaired" / arch
        for method, label in RANKINGS.items():
            cut, new = (
                _by_budget(folder / f"{method}{kind}.scores.json") for kind in ("", "-repaired")
            )
            for budget, score in new.items():
                cells = [name, f"{budget} %", label, percent(cut[budget]["accuracy"])]
                tuned = folder / f"{method}-tuned{budget}.json"
                after = percent(_read(tuned)["test"]["accuracy"]) if tuned.exists() else ""
                found.append([*cells, percent(score["accuracy"]), after])
    return found


def percent(share: float) -> str:
    """Format a share as a percentage without the sign: `91.73`."""
    return f"{100 * share:.2f}"


def _by_budget(path: Path) -> dict[str, Any]:
    """The scores of a file by FLOPs budget: `47`."""
    scores = _read(path)["scores"]
    return {Path(score["file"]).stem.rpartition("flops")[2]: score for score in scores}


def _read(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
