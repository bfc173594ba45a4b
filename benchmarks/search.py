"""Which search: the best fitness after so many candidates, by first pool and by size of change.

`python benchmarks/search.py resnet20-cifar10.th resnet20 cifar10:DIR OUT [CANDIDATES] [SEED…]`
(ImageNet statistics). Made of `legr learn` commands; what is in OUT is not searched again.
"""

import json
import subprocess
import sys
from pathlib import Path

WAYS = {
    "identity, σ 1 → 0.2": ("--start", "identity", "--sigma-end", "0.2"),
    "identity, σ 1": ("--start", "identity", "--sigma-end", "1.0"),
    "identity, σ 0.5 → 0.2": ("--start", "identity", "--sigma", "0.5", "--sigma-end", "0.2"),
    "random, σ 1 → 0.2": ("--start", "random", "--sigma-end", "0.2"),
}
FITNESS = ("--fitness", "bn", "--val-images", "1000", "--flops", "0.4", "--population", "24")


def main(checkpoint: str, arch: str, data: str, out: str, *numbers: str) -> None:
    """One search for each way and seed, then the table."""
    candidates, *seeds = [int(number) for number in numbers] or [80]
    marks = [n for n in (1, 10, 20, 40, 80, 160, 320) if n <= candidates]
    print("way", "seed", *marks, "tried", sep=" | ")
    for seed in seeds or [0, 1, 2]:
        for number, (way, options) in enumerate(WAYS.items()):
            ranking = Path(out, f"{arch}-{number}-{seed}.json")
            command = ["legr", "learn", checkpoint, "--arch", arch, "--data", data, "--resume"]
            command += ["--normalize", "imagenet", *FITNESS, *options, "--sample", "8"]
            command += ["--candidates", str(candidates), "--seed", str(seed), "--out", str(ranking)]
            subprocess.run(command, check=True, capture_output=True)
            lines = ranking.with_suffix(".history.jsonl").read_text().splitlines()[1:]
            found = [json.loads(line) for line in lines]
            best = [max(line["accuracy"] for line in found[:mark]) for mark in marks]
            tried = sum(not line["cached"] for line in found)
            print(way, seed, *(f"{x:.1%}" for x in best), tried, sep=" | ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
