"""Which search settings are best? Best fitness after N candidates, by start and mutation size.

    python benchmarks/search.py resnet20-cifar10.th resnet20 cifar10:DIR OUT [CANDIDATES] [SEED …]

runs `legr learn` for every variant and seed; searches already finished in OUT are not repeated.
Images are normalized with ImageNet statistics.
"""

import json
import subprocess
import sys
from pathlib import Path

VARIANTS = {
    "identity, σ 1 → 0.2": ("--start", "identity", "--sigma-end", "0.2"),
    "identity, σ 1": ("--start", "identity", "--sigma-end", "1.0"),
    "identity, σ 0.5 → 0.2": ("--start", "identity", "--sigma", "0.5", "--sigma-end", "0.2"),
    "random, σ 1 → 0.2": ("--start", "random", "--sigma-end", "0.2"),
}
FITNESS = ("--fitness", "bn", "--val-images", "1000", "--flops", "0.4", "--population", "24")


def main(checkpoint: str, arch: str, data: str, out: str, *numbers: str) -> None:
    """Print a row for each variant and seed, as searches finish."""
    candidates, *seeds = [int(number) for number in numbers] or [80]
    marks = [n for n in (1, 10, 20, 40, 80, 160, 320) if n <= candidates]
    print("variant", "seed", *marks, "evaluated", sep=" | ")
    for seed in seeds or [0, 1, 2]:
        for number, (variant, options) in enumerate(VARIANTS.items()):
            ranking = Path(out, f"{arch}-{number}-{seed}.json")
            command = ["legr", "learn", checkpoint, "--arch", arch, "--data", data, "--resume"]
            command += ["--normalize", "imagenet", *FITNESS, *options, "--sample", "8"]
            command += ["--candidates", str(candidates), "--seed", str(seed), "--out", str(ranking)]
            subprocess.run(command, check=True, capture_output=True)
            lines = ranking.with_suffix(".history.jsonl").read_text().splitlines()[1:]
            candidates_run = [json.loads(line) for line in lines]
            best = [max(line["accuracy"] for line in candidates_run[:mark]) for mark in marks]
            evaluated = sum(not line["cached"] for line in candidates_run)
            print(variant, seed, *(f"{x:.1%}" for x in best), evaluated, sep=" | ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
