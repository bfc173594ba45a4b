"""legr: small, fast ConvNets for every FLOP target from one learned ranking.

From Python, one function for each command; docs/python.md shows the whole flow. Nothing heavy is
imported until a function is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from legr_cli.errors import LegrError
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.baselines.compare import compare
    from legr_cli.deploy.bench import bench
    from legr_cli.deploy.export import export
    from legr_cli.models.load import load
    from legr_cli.models.save import save
    from legr_cli.pruning import inspect, prune
    from legr_cli.repairs.repair import repair
    from legr_cli.reports.report import report
    from legr_cli.search.learn import learn
    from legr_cli.training.evaluate import evaluate
    from legr_cli.training.finetune import finetune

__all__ = [
    "LegrError",
    "__version__",
    "bench",
    "compare",
    "evaluate",
    "export",
    "finetune",
    "inspect",
    "learn",
    "load",
    "prune",
    "repair",
    "report",
    "save",
]

_HOMES = {
    "bench": "deploy.bench",
    "compare": "baselines.compare",
    "evaluate": "training.evaluate",
    "export": "deploy.export",
    "finetune": "training.finetune",
    "inspect": "pruning",
    "learn": "search.learn",
    "load": "models.load",
    "prune": "pruning",
    "repair": "repairs.repair",
    "report": "reports.report",
    "save": "models.save",
}


def __getattr__(name: str) -> Any:
    """Import a public function when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'legr_cli' has no attribute {name!r}")
    function = getattr(import_module(f"legr_cli.{_HOMES[name]}"), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return __all__
