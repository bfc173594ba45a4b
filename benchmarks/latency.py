"""What pruning saves in time on this CPU, with and without alignment, and how well that repeats.

    python benchmarks/latency.py [--write docs/results.md]

One thread, random weights, layers cut unevenly as a learned ranking cuts them (three rankings).
Prints Markdown: latency over dense and slope (latency saved per FLOP saved) of MobileNetV2,
ResNet-18 and ResNet-50; ratios of two `legr bench` runs; `legr prune --latency 0.5`, timed again.
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

NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")
RANKINGS = 3
BEGIN, END = "<!-- benchmarks/latency.py -->", "<!-- end -->"


def legr(*args: object) -> tuple[float, dict]:
    """Seconds and JSON of a command."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "legr_cli", *map(str, args), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begun, json.loads(done.stdout)


def cell(points: list[Point]) -> str:
    """Medians over the rankings, and the least slope: `0.52 (0.96, least 0.95)`."""
    slopes = [point.slope for point in points]
    latency = statistics.median(point.latency for point in points)
    return f"{latency:.2f} ({statistics.median(slopes):.2f}, least {min(slopes):.2f})"


def slopes() -> Iterator[str]:
    """A row for each network and target."""
    yield "| network, FLOPs kept | `--align auto` | `--align 1` |"
    yield "|---|---|---|"
    aligns = {"auto": parse_align("auto"), "1": parse_align("1")}
    for name in NETWORKS:
        analysis = analyze(open_network(f"random:{name}"))
        with Board(here()) as board:
            found = [
                timed(board, analysis, uneven(analysis, i), aligns, 2.0) for i in range(RANKINGS)
            ]
        for share in SHARES:
            cells = (cell([one[rule][share] for one in found]) for rule in aligns)
            yield f"| {name}, {share:.0%} | {' | '.join(cells)} |"


def repeats(folder: Path) -> Iterator[str]:
    """The ratio of a pair of networks by two runs of the command."""
    for name in NETWORKS:
        path = folder / f"{name}.safetensors"
        legr("prune", f"random:{name}", "--flops", 0.5, "--out", path)
        pair = ("bench", path, "--against", f"random:{name}")
        one, two = (legr(*pair)[1]["models"][1]["ratio"] for _ in range(2))
        yield f"- `legr bench` twice, {name} at half of the FLOPs: {one:.3f}, {two:.3f}"


def targets(folder: Path) -> Iterator[str]:
    """`--latency 0.5`: seconds, and what the written network takes when it is measured again."""
    for name in NETWORKS:
        path = folder / f"{name}-fast.safetensors"
        seconds, said = legr("prune", f"random:{name}", "--latency", 0.5, "--out", path)
        row = said["pruned"][0]
        again = legr("bench", path, "--against", f"random:{name}")[1]["models"][1]["ratio"]
        yield (
            f"- `legr prune random:{name} --latency 0.5` in {seconds:.0f} s: "
            f"{row['flops_share']:.1%} of the FLOPs, {row['latency']['ratio']:.3f} of the latency, "
            f"measured again {again:.3f}"
        )


def begins(folder: Path) -> Iterator[str]:
    """How long `legr bench x.onnx` takes beside 0.25 s of warm-up and 0.1 s of measuring."""
    path = folder / "net.safetensors"
    legr("prune", "random:mobilenet_v2", "--flops", 0.5, "--onnx", "--out", path)
    bench = ("bench", path.with_suffix(".onnx"), "--seconds", 0.1)
    seconds = statistics.median(legr(*bench)[0] for _ in range(5))
    yield f"- `legr bench x.onnx` begins to measure after {seconds - 0.35:.2f} s at most"


def main() -> None:
    """Print all of it, and put it where it belongs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    with Board(here()) as board:
        cpu = f"{board.device['cpu']} ({board.device['kernels']}), {board.device['runtime']}"
    lines = [f"{time.strftime('%Y-%m-%d')}, {cpu}, Python {platform.python_version()}:", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (slopes(), iter([""]), repeats(folder), targets(folder), begins(folder)):
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
