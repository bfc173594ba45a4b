"""Which block of channels makes pruned networks fast? Latency and slope by alignment rule.

`python benchmarks/align.py [NETWORK …]` prints, for each network, target and rule, the FLOP share
reached, latency over dense (ONNX Runtime, one thread, runs interleaved) and the slope: latency
saved per FLOP saved. A rule F halves the CPU's block until a group is F blocks wide.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

from legr_cli.channels import apply
from legr_cli.cost import count_flops
from legr_cli.cut import arrange, cut
from legr_cli.deploy.onnx import export
from legr_cli.networks import open_network
from legr_cli.pruning import study
from legr_cli.ranking import Ranking, Row, identity, importance
from legr_cli.settings import BLOCKS, Align, this_cpu

NETWORKS = ("resnet20", "resnet56", "mobilenet_v2", "mobilenet_v2_cifar", "resnet18", "resnet50")
RULES = {"1": (1, 0), "16": (16, 0), "F=1": (0, 1), "F=2": (0, 2), "F=4": (0, 4), "F=8": (0, 8)}
SHARES = (0.7, 0.5, 0.3)


def uneven(known: object, seed: int = 0) -> Ranking:
    """Rows as a search leaves them: each layer scaled at random."""
    rng = np.random.default_rng(seed)
    rows = identity(known.filters).rows
    norms = np.bincount(known.filters.layer, known.filters.norm2) / np.array(
        [r.filters for r in rows]
    )
    return Ranking(
        tuple(
            Row(r.name, r.filters, float(np.exp(rng.normal(0, 0.5)) / n))
            for r, n in zip(rows, norms, strict=True)
        )
    )


def session(path: Path) -> onnxruntime.InferenceSession:
    """One thread, denormals off."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def latencies(sessions: list, images: np.ndarray, seconds: float) -> np.ndarray:
    """Median seconds of each session, runs interleaved."""
    feeds = [{s.get_inputs()[0].name: images} for s in sessions]
    for s, feed in zip(sessions, feeds, strict=True):
        s.run(None, feed)
        s.run(None, feed)
    times, end = [[] for _ in sessions], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for i, (s, feed) in enumerate(zip(sessions, feeds, strict=True)):
            start = time.perf_counter()
            s.run(None, feed)
            times[i].append(time.perf_counter() - start)
    return np.array([np.median(t) for t in times])


def main() -> None:
    """Measure all rules on all networks."""
    block = BLOCKS.get(this_cpu(), 4)
    for name in sys.argv[1:] or NETWORKS:
        network = open_network(f"random:{name}")
        known = study(network)
        scores = importance(known.filters, uneven(known))
        with tempfile.TemporaryDirectory() as folder:
            dense = Path(folder) / "dense.onnx"
            export(network.model, network.input_shape, dense)
            rows, sessions = [], [session(dense)]
            for rule, (fixed, factor) in RULES.items():
                align = Align(rule, fixed or block, factor)
                blocks = arrange(known.units, known.cost, scores, 0.1, align)
                for share in SHARES:
                    try:
                        kept = blocks.kept(
                            cut(known.cost, blocks, known.cost.flops, share), known.cost
                        )
                    except Exception as error:
                        print(name, rule, share, error)
                        continue
                    smaller = apply(known.units, kept)
                    path = Path(folder) / f"{rule}-{share}.onnx"
                    export(smaller, network.input_shape, path)
                    rows.append(
                        (rule, share, count_flops(smaller, network.input_shape) / known.flops)
                    )
                    sessions.append(session(path))
            images = np.random.default_rng(0).random((1, *network.input_shape), np.float32)
            base, *found = latencies(sessions, images, 40)
            for (rule, share, flops), latency in zip(rows, found, strict=True):
                ratio = latency / base
                print(
                    f"{name:20} {share:.1f} {rule:4} flops {flops:.3f} latency {ratio:.3f} "
                    f"slope {(1 - ratio) / (1 - flops):.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
