"""Segmentation on CamVid: a ranking, a repair and a training without labels, step by step.

    python benchmarks/camvid.py CAMVID OUT [--epochs 180] [--tune 10] [--candidates 60]

CAMVID has train, val and test, with label pictures in train-labels, … (11 classes; 11: ignored).
A dense network is trained from scratch on labels. Then it is pruned by a learned ranking and
uniformly; rankings, repairs and the training towards the dense network see the training pictures
alone. Only legr commands are used, and what OUT has already is not made again. The table is of the
test pictures, with labels; at its end are latencies.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

CLASSES = ["--ignore-index", "11"]
BUDGETS = (0.7, 0.5, 0.3)
WAYS = ("cut", "repaired", "tuned without labels", "tuned with labels")


def legr(*words: object) -> str:
    """Run a command, and return what it prints on stdout."""
    command = [sys.executable, "-m", "legr_cli", *map(str, words)]
    print(" ".join(["legr", *command[3:]]), file=sys.stderr)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def make(path: Path, *words: object) -> Path:
    """Make a file by a command unless there is one."""
    if not path.exists() or path.with_suffix(".state").exists():
        resumable = ["--resume"] if words[0] in ("learn", "finetune") else []
        legr(*words, *resumable, "--out", path)
    return path


def networks(options: argparse.Namespace) -> dict[tuple[str, str, float], Path]:
    """All networks, by method, way and share of the FLOPs; the dense one first."""
    out, pictures = options.out, f"images:{options.camvid}/train"
    labels = ["--data", f"pairs:{options.camvid}", *CLASSES]
    dense = make(
        out / "dense.safetensors",
        *("finetune", "--arch", "lraspp_mobilenet_v3_large", "--classes", 11),
        *("--input", "3x180x240", *labels, "--flip", "--random-crop", "resized"),
        *("--recipe", "quick", "--epochs", options.epochs, "--lr", 0.05, "--batch-size", 8),
        *("--loaders", 0),
    )
    learn = ("learn", dense, "--data", pictures, "--flops", "0.3,0.6", "--batch-size", 32)
    ranking = make(out / "ranking.json", *learn, "--candidates", options.candidates)
    found = {("", "dense", 1.0): dense}
    tune = ("--batch-size", 8, "--loaders", 0, "--epochs", options.tune, "--flip")
    tune = (*tune, "--random-crop", "resized")
    for method, by in (("learned", ranking), ("uniform", "uniform"), ("norms", None)):
        for share in BUDGETS:

            def path(way: str, method: str = method, share: float = share) -> Path:
                return out / f"{method}-{share:.0%}-{way.replace(' ', '-')}.safetensors"

            ranked = ("--ranking", by) if by else ()
            cut = make(path("cut"), "prune", dense, "--flops", share, *ranked)
            with_dense = ("--dense", dense, "--data", pictures)
            repaired = make(path("repaired"), "repair", cut, *with_dense)
            found |= {(method, "cut", share): cut, (method, "repaired", share): repaired}
            if method == "norms":
                continue
            taught = ("finetune", repaired, "--teacher", dense, *tune)
            found[method, WAYS[2], share] = make(path(WAYS[2]), *taught, "--data", pictures)
            found[method, WAYS[3], share] = make(path(WAYS[3]), *taught, *labels)
    return found


def main() -> None:
    """Make what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("camvid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=180)
    parser.add_argument("--tune", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=60)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    found = networks(options)
    scores = options.out / "scores.json"
    legr(
        "evaluate", *found.values(), "--data", f"pairs:{options.camvid}", *CLASSES, "--out", scores
    )
    rows = {row["file"]: row for row in json.loads(scores.read_text())["scores"]}
    print("| method | FLOPs | " + " | ".join(WAYS) + " |", "|---" * 6 + "|", sep="\n")
    dense = rows[str(found["", "dense", 1.0])]["figures"]
    print(f"| dense | 100 % | {100 * dense['mean IoU']:.1f} | | | |")
    for method in ("learned", "uniform", "norms"):
        for share in BUDGETS:
            files = [found.get((method, way, share)) for way in WAYS]
            cells = (f"{100 * rows[str(f)]['figures']['mean IoU']:.1f}" if f else "" for f in files)
            print(f"| {method} | {share:.0%} | {' | '.join(cells)} |")
    small = [path for (_, way, _), path in found.items() if way == "repaired"]
    print(legr("bench", *small, "--against", found["", "dense", 1.0], "--json"))


if __name__ == "__main__":
    main()
