"""How much latency does pruning save on this CPU, and how reproducible are the measurements?

    python benchmarks/latency.py [--write docs/lab/latency.md]

One thread, random weights, and layers pruned unevenly, as a learned ranking prunes them (three
rankings). Prints Markdown: latency relative to dense and slope (latency saved per FLOP saved) with
and without alignment; the ratios of two `legr bench` runs; and `legr prune --latency 0.5`, measured
again.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from align import SHARES, timed, uneven

from legr_cli.deploy.board import Board, here
from legr_cli.deploy.slope import Point
from legr_cli.models.network import open_network
from legr_cli.pruning import analyze
from legr_cli.settings import parse_align

ARCHS = ("mobilenet_v2", "resnet18", "resnet50")
RANKINGS = 3
BEGIN, END = "<!-- benchmarks/latency.py -->", "<!-- end -->"


def legr(*args: object) -> tuple[float, dict]:
    """Run a command; return its seconds and its JSON."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "legr_cli", *map(str, args), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, json.loads(done.stdout)


def cell(points: list[Point]) -> str:
    """Median latency and slope over rankings, and the lowest slope: `0.52 (0.96, least 0.95)`."""
    slopes = [point.slope for point in points]
    latency = statistics.median(point.latency for point in points)
    return f"{latency:.2f} ({statistics.median(slopes):.2f}, least {min(slopes):.2f})"


def slopes() -> Iterator[str]:
    """Yield a row for each network and target."""
    yield "| network, FLOPs kept | `--align auto` | `--align 1` |"
    yield "|---|---|---|"
    aligns = {"auto": parse_align("auto"), "1": parse_align("1")}
    for name in ARCHS:
        analysis = analyze(open_network(f"random:{name}"))
        with Board(here()) as board:
            by_ranking = [
                timed(board, analysis, uneven(analysis, i), aligns, 2.0) for i in range(RANKINGS)
            ]
        for share in SHARES:
            cells = (cell([one[rule][share] for one in by_ranking]) for rule in aligns)
            yield f"| {name}, {share:.0%} | {' | '.join(cells)} |"


def repeats(folder: Path) -> Iterator[str]:
    """Yield the ratio of a pair of networks in two runs of `legr bench`."""
    for name in ARCHS:
        path = folder / f"{name}.safetensors"
        legr("prune", f"random:{name}", "--flops", 0.5, "--out", path)
        pair = ("bench", path, "--against", f"random:{name}")
        first, second = (legr(*pair)[1]["models"][1]["ratio"] for _ in range(2))
        yield f"- `legr bench` twice, {name} at half of the FLOPs: {first:.3f}, {second:.3f}"


def targets(folder: Path) -> Iterator[str]:
    """Yield the seconds of `--latency 0.5`, and the latency of its network, measured again."""
    for name in ARCHS:
        path = folder / f"{name}-fast.safetensors"
        seconds, output = legr("prune", f"random:{name}", "--latency", 0.5, "--out", path)
        row = output["pruned"][0]
        again = legr("bench", path, "--against", f"random:{name}")[1]["models"][1]["ratio"]
        yield (
            f"- `legr prune random:{name} --latency 0.5` in {seconds:.0f} s: "
            f"{row['flops_share']:.1%} of the FLOPs, {row['latency']['ratio']:.3f} of the latency, "
            f"measured again {again:.3f}"
        )


def startup(folder: Path) -> Iterator[str]:
    """Yield the seconds of `legr bench x.onnx` beyond 0.25 s of warm-up and 0.1 s of measuring."""
    path = folder / "net.safetensors"
    legr("prune", "random:mobilenet_v2", "--flops", 0.5, "--onnx", "--out", path)
    bench = ("bench", path.with_suffix(".onnx"), "--seconds", 0.1)
    seconds = statistics.median(legr(*bench)[0] for _ in range(5))
    yield f"- `legr bench x.onnx` begins to measure after {seconds - 0.35:.2f} s at most"


def main() -> None:
    """Print all results; with `--write`, also replace them in a page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    with Board(here()) as board:
        cpu = f"{board.device['cpu']} ({board.device['kernels']}), {board.device['runtime']}"
    lines = [f"{time.strftime('%Y-%m-%d')}, {cpu}, Python {platform.python_version()}:", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (slopes(), iter([""]), repeats(folder), targets(folder), startup(folder)):
            for line in part:
                print(line, flush=True)
                lines.append(line)
    if args.write:
        text = args.write.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END, 1)[1]
        inside = "\n".join([BEGIN, *lines, END])
        args.write.write_text(before + inside + after, encoding="utf-8")


if __name__ == "__main__":
    main()
