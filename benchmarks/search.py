"""Which explorer is best? The best objective after equal seconds, by explorer and seed.

    python benchmarks/search.py OUT MINUTES "SEED …" "CHECKPOINT;ARCH;DATA;NORMALIZE" …

runs `legr learn` with `--fitness repair` for every network, seed and variant below, MINUTES each,
and prints the mean logarithm of the divergence (lower is better) at a quarter, half, three quarters
and the whole of the time. Searches that are finished in OUT are not repeated.
"""

import json
import subprocess
import sys
from pathlib import Path

from legr_cli.search.objectives import OBJECTIVES, divergences_in

VARIANTS = {
    "surrogate": ("--explorer", "surrogate"),
    "evolution": ("--explorer", "evolution"),
    "cmaes": ("--explorer", "cmaes"),
    "random": ("--explorer", "random"),
    "surrogate, start from sensitivities": ("--start", "sensitivity"),
    "evolution over squared norms": ("--explorer", "evolution", "--metric", "squared-norm"),
    "surrogate over squared norms": ("--metric", "squared-norm"),
}
MARKS = (0.25, 0.5, 0.75, 1.0)


def main(out: str, minutes: str, seeds: str, *networks: str) -> None:
    """Print a row for each network, variant and seed, as searches finish."""
    print("network", "variant", "seed", "candidates", *(f"{m:.0%}" for m in MARKS), sep=" | ")
    for network in networks:
        checkpoint, arch, data, normalize = network.split(";")
        for seed in seeds.split():
            for name, options in VARIANTS.items():
                ranking = Path(out, f"{arch}-{name.replace(' ', '-').replace(',', '')}-{seed}.json")
                command = ["legr", "learn", checkpoint, "--arch", arch, "--data", data, "--resume"]
                command += ["--normalize", normalize, "--align", "1", "--minutes", minutes]
                command += [*options, "--seed", seed, "--out", str(ranking)]
                subprocess.run(command, check=True, capture_output=True)
                lines, best = reached(ranking.with_suffix(".history.jsonl"), 60 * float(minutes))
                shown = (f"{value:.3f}" for value in best)
                print(arch, name, seed, lines, *shown, sep=" | ", flush=True)


def reached(history: Path, seconds: float) -> tuple[int, list[float]]:
    """The number of candidates, and the best objective at each mark of the time."""
    lines = [json.loads(line) for line in history.read_text().splitlines()[1:]]
    spent, best = 0.0, [float("inf")] * len(MARKS)
    for line in sorted(lines, key=lambda line: line["candidate"]):
        spent += line.get("seconds", 0.0) + line.get("think_seconds", 0.0)
        divergences = divergences_in(line)
        if divergences is None or "measured" in line:
            continue
        value = -OBJECTIVES["log"](divergences, line)
        best = [
            min(b, value) if spent <= mark * seconds or mark == 1.0 else b
            for b, mark in zip(best, MARKS, strict=True)
        ]
    return len(lines), best


if __name__ == "__main__":
    main(*sys.argv[1:])
