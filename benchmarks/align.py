"""Which block of channels makes pruned networks fast? Latency and slope by alignment rule.

`python benchmarks/align.py [NETWORK …]` prints, for each network, target and rule, the FLOP share
reached, latency over dense (one thread, in turns, as `legr bench` measures) and the slope: latency
saved per FLOP saved. A rule F halves the CPU's block until a group is F blocks wide.
"""

import sys
from dataclasses import replace

import numpy as np

from legr_cli.channels import apply
from legr_cli.deploy.board import Board, here
from legr_cli.deploy.export import export_bytes
from legr_cli.deploy.slope import Point
from legr_cli.errors import BudgetError
from legr_cli.models.network import open_network
from legr_cli.pruning import Analysis, analyze, plans
from legr_cli.ranking import Ranking, Row, identity
from legr_cli.settings import BLOCKS, Align, Prune, this_cpu
from legr_cli.targets import Target

NETWORKS = ("resnet20", "resnet56", "mobilenet_v2", "mobilenet_v2_cifar", "resnet18", "resnet50")
RULES = {"1": (1, 0), "16": (16, 0), "F=1": (0, 1), "F=2": (0, 2), "F=4": (0, 4), "F=8": (0, 8)}
SHARES = (0.7, 0.5, 0.3)


def uneven(analysis: Analysis, seed: int = 0) -> Ranking:
    """Rows as a search leaves them: each layer scaled at random."""
    rng = np.random.default_rng(seed)
    rows = identity(analysis.filters).rows
    sizes = np.array([row.filters for row in rows])
    means = np.bincount(analysis.filters.layer, analysis.filters.value) / sizes
    scales = np.exp(rng.normal(0, 0.5, len(rows))) / means
    pairs = zip(rows, scales.tolist(), strict=True)
    return Ranking(tuple(Row(row.name, row.filters, scale) for row, scale in pairs))


def timed(
    board: Board, analysis: Analysis, ranking: Ranking, aligns: dict[str, Align], seconds: float
) -> dict[str, dict[float, Point]]:
    """By rule and target, where a network comes out beside the dense one; all take turns."""
    wanted = {}
    dense = board.load("dense", export_bytes(analysis.network)[0])["flops"]
    for rule, align in aligns.items():
        for share in SHARES:
            settings = Prune(targets=(Target("flops", share),), align=align)
            try:
                [kept] = plans(analysis, ranking, settings)
            except BudgetError as error:
                print(analysis.network.arch, rule, share, error)
                continue
            smaller = replace(analysis.network, model=apply(analysis.units, kept))
            facts = board.load(f"{rule} {share}", export_bytes(smaller)[0])
            wanted[facts["name"]] = (rule, share, facts["flops"] / dense)
    measured = board.measure(["dense", *wanted], seconds)["models"]
    found: dict[str, dict[float, Point]] = {rule: {} for rule in aligns}
    for row in measured[1:]:
        rule, share, flops = wanted[row["name"]]
        found[rule][share] = Point(row["name"], flops, row["ratio"])
    for name in ("dense", *wanted):
        board.drop(name)
    return found


def main() -> None:
    """Measure all rules on all networks."""
    block = BLOCKS.get(this_cpu(), 4)
    aligns = {rule: Align(rule, fixed or block, f) for rule, (fixed, f) in RULES.items()}
    with Board(here()) as board:
        for name in sys.argv[1:] or NETWORKS:
            analysis = analyze(open_network(f"random:{name}"))
            for rule, line in timed(board, analysis, uneven(analysis), aligns, 2.0).items():
                for share, point in line.items():
                    print(
                        f"{name:20} {share:.1f} {rule:4} flops {point.flops:.3f} "
                        f"latency {point.latency:.3f} slope {point.slope:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
