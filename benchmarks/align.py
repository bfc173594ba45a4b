"""Which block of channels makes pruned networks fast? Latency and slope by alignment rule.

    python benchmarks/align.py [ARCH …]

prints, for each network, target and rule, the share of the FLOPs reached, the latency relative to
dense (one thread, in turns, as `legr bench` measures it) and the slope (latency saved per FLOP
saved). Rules 1 and 16 are fixed blocks; rule F=N halves the CPU's block size until a group has at
least N blocks.
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

ARCHS = ("resnet20", "resnet56", "mobilenet_v2", "mobilenet_v2_cifar", "resnet18", "resnet50")
RULES = {  # fixed block size (0: of the CPU) and least number of blocks in a group
    "1": (1, 0),
    "16": (16, 0),
    "F=1": (0, 1),
    "F=2": (0, 2),
    "F=4": (0, 4),
    "F=8": (0, 8),
}
SHARES = (0.7, 0.5, 0.3)


def uneven(analysis: Analysis, seed: int = 0) -> Ranking:
    """A ranking like a learned one: each layer is scaled at random."""
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
    """Measure the networks of all rules and targets in turns; return points by rule and share."""
    loaded = {}
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
            loaded[facts["name"]] = (rule, share, facts["flops"] / dense)
    measured = board.measure(["dense", *loaded], seconds)["models"]
    points: dict[str, dict[float, Point]] = {rule: {} for rule in aligns}
    for row in measured[1:]:
        rule, share, flops = loaded[row["name"]]
        points[rule][share] = Point(row["name"], flops, row["ratio"])
    for name in ("dense", *loaded):
        board.drop(name)
    return points


def main() -> None:
    """Measure all rules on all networks."""
    block = BLOCKS.get(this_cpu(), 4)
    aligns = {rule: Align(rule, fixed or block, least) for rule, (fixed, least) in RULES.items()}
    with Board(here()) as board:
        for name in sys.argv[1:] or ARCHS:
            analysis = analyze(open_network(f"random:{name}"))
            for rule, points in timed(board, analysis, uneven(analysis), aligns, 2.0).items():
                for share, point in points.items():
                    print(
                        f"{name:20} {share:.1f} {rule:4} flops {point.flops:.3f} "
                        f"latency {point.latency:.3f} slope {point.slope:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
