"""What does pruning save on an ARM core, in instructions executed by an emulated Cortex-A57?

    scripts/a57 DIR && python benchmarks/a57.py DIR [ARCH …]
    python benchmarks/a57.py DIR DENSE PRUNED.safetensors …

The first form prunes architectures with random weights and prints a table: for each network,
alignment and FLOP target, the instructions per run in ONNX Runtime (one thread, one image, minimum
of three runs), their ratio to dense, and the slope (instructions saved per FLOP saved). The second
form takes a checkpoint and networks that legr pruned from it, and prints JSON. The emulator models
neither caches nor a clock, so these are counts, not milliseconds.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from align import uneven

from legr_cli.channels import apply
from legr_cli.cost import count_flops
from legr_cli.deploy import core
from legr_cli.deploy.export import export_bytes
from legr_cli.deploy.slope import Point, fitted_slope
from legr_cli.models.network import Network, open_network
from legr_cli.pruning import Analysis, analyze, plans
from legr_cli.settings import Prune, parse_align
from legr_cli.targets import Target

NETWORKS = ("mobilenet_v2", "resnet18")
ALIGNMENTS = ("arm", "1")
SHARES = (0.7, 0.5, 0.3)
PLUGIN = Path(__file__).with_name("a57_count.c")
GUEST = """
import contextlib, os, pathlib, core

def mark():
    with contextlib.suppress(OSError):
        os.close(0x7fabcdef)  # the marker that a57_count.c looks for

net = core.Net("network", pathlib.Path("network.onnx").read_bytes())
for _ in range(2):
    net.run()
mark()
for _ in range(3):
    net.run()
    mark()
"""


def prepare(folder: Path) -> None:
    """Build the plugin and copy the measuring core into a folder."""
    build = ["cc", "-O2", "-shared", "-fPIC", "-o", folder / "a57_count.so", PLUGIN]
    subprocess.run(build, check=True)
    shutil.copyfile(core.__file__, folder / "core.py")


def instructions(python: Path, folder: Path, network: Network) -> int:
    """Instructions per run of a network on the emulated core: the minimum of three runs."""
    (folder / "network.onnx").write_bytes(export_bytes(network)[0])
    env = {**os.environ, "QEMU": "-plugin ./a57_count.so"}
    done = subprocess.run(
        [python, "-c", GUEST], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )
    lines = [line.split() for line in done.stderr.splitlines()]
    counts = [int(words[1]) for words in lines if words[:1] == ["a57_count"]]
    if done.returncode or len(counts) != 4:
        sys.exit(f"a57: the emulated core failed on {network.arch}:\n{done.stderr}")
    return min(counts[1:])  # the first counts everything before the timed runs


def pruned(analysis: Analysis, alignment: str) -> Iterator[Network]:
    """Yield the network pruned to each target with an uneven ranking."""
    targets = tuple(Target("flops", share) for share in SHARES)
    settings = Prune(targets=targets, align=parse_align(alignment), min_keep=0.1)
    for kept in plans(analysis, uneven(analysis, 0), settings):
        yield replace(analysis.network, model=apply(analysis.units, kept))


def print_row(*cells: str) -> None:
    """Print a row of the table."""
    print("|", " | ".join(cells), "|", flush=True)


def cells(point: Point, dense: int) -> tuple[str, ...]:
    """The cells of a network's row; `point.latency` is its ratio of instructions to dense."""
    slope = "" if point.slope is None else f"{point.slope:.2f}"
    giga = point.latency * dense / 1e9
    share = f"{point.flops * 100:.1f} %"
    return point.name, share, f"{giga:.4f}", f"{point.latency:.3f}", slope


Cuts = Iterable[tuple[str, Iterable[Network]]]  # alignment and the networks pruned with it


def measure(network: Network, cuts: Cuts, python: Path, folder: Path) -> None:
    """Print the rows of a network: dense, then for each alignment the pruned ones and a slope."""
    name, dense = str(network.arch), instructions(python, folder, network)
    dense_flops = count_flops(network.model, network.input_shape)
    baseline = Point("dense", 1.0, 1.0)
    print_row(name, *cells(baseline, dense))
    for alignment, networks in cuts:
        points = [baseline]
        for smaller in networks:
            flops = count_flops(smaller.model, smaller.input_shape) / dense_flops
            ratio = instructions(python, folder, smaller) / dense
            points.append(Point(alignment, flops, ratio))
            print_row(name, *cells(points[-1], dense))
        fit = fitted_slope(points)
        print_row(name, alignment, "all, fitted", "", "", f"**{fit[0]:.2f}**" if fit else "")


def random_network(name: str) -> tuple[Network, Cuts]:
    """An architecture with random weights, and the networks pruned from it."""
    analysis = analyze(open_network(f"random:{name}"))
    return analysis.network, ((alignment, pruned(analysis, alignment)) for alignment in ALIGNMENTS)


def from_files(python: Path, folder: Path, dense: str, *files: str) -> None:
    """Print JSON of a checkpoint and networks pruned from it, in the order of the files."""
    arch = open_network(files[0]).arch
    rows = []
    for file in (dense, *files):
        network = open_network(file, usual=arch)
        flops = count_flops(network.model, network.input_shape)
        count = instructions(python, folder, network)
        rows.append({"file": file, "flops": flops, "instructions": count})
    print(json.dumps({"arch": str(arch), "models": rows}, indent=2))


def main(emulator: str, *names: str) -> None:
    """Measure all networks."""
    python = Path(emulator).resolve() / "python"
    if not python.is_file():
        sys.exit(f"a57: {emulator} does not contain an emulator: run scripts/a57 {emulator}")
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        if names and Path(names[0]).is_file():
            return from_files(python, Path(folder), *names)
        print_row("network", "alignment", "FLOPs kept", "instructions (G)", "over dense", "slope")
        print_row(*["---"] * 6)
        for name in names or NETWORKS:
            measure(*random_network(name), python, Path(folder))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
