"""Print the tables of a comparison as Markdown, or write them into a page.

    python benchmarks/tables.py DIR/compare.json … [--brief] [--into docs/lab/digits.md digits]

`--into PAGE NAME` replaces the text between `<!-- NAME -->` and `<!-- end NAME -->`. `--brief`
prints one short table. Several files are read as one comparison that was run with several seeds.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

Rows = list[dict]


def accuracy(rows: Rows, key: str) -> list[str]:
    """A line for each method, a column for each target."""
    targets = sorted({row["share"] for row in rows})
    lines = ["| | " + " | ".join(f"{share:.0%}" for share in targets) + " |"]
    lines.append("|---" * (len(targets) + 1) + "|")
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for share in targets:
            own = [r for r in rows if (r["method"], r["share"]) == (method, share)]
            cells.append(cell([100 * row[key] for row in own if key in row], key))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def cell(found: list[float], key: str) -> str:
    """`91.20 ± 0.11`."""
    if not found:
        return "–"
    mean = f"{statistics.mean(found):.2f}"
    several = len(found) > 1 and key == "accuracy"
    return f"{mean} ± {statistics.stdev(found):.2f}" if several else mean


def costs(rows: Rows) -> list[str]:
    """Cost of all targets by method, as the mean over seeds."""
    lines = ["| | pruning, s | / LeGR's | steps | images | fine-tuning, s | total / LeGR's |"]
    lines.append("|---" * 7 + "|")
    seeds = len({row["seed"] for row in rows})
    sums = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method and "error" not in row]
        sums[method] = {
            (part, unit): sum(row[part][unit] for row in own) / seeds
            for part in ("pruning", "tuning")
            for unit in ("seconds", "steps", "images")
        }
    for method, found in sums.items():
        pruning, tuning = found["pruning", "seconds"], found["tuning", "seconds"]
        legr = sums.get("legr", found)
        ours, all_of_it = legr["pruning", "seconds"], legr["tuning", "seconds"]
        lines.append(
            f"| {method} | {pruning:.1f} | {pruning / ours if ours else 0:.2f} | "
            f"{found['pruning', 'steps']:.0f} | {found['pruning', 'images']:.0f} | {tuning:.1f} | "
            f"{(pruning + tuning) / ((ours + all_of_it) or 1):.2f} |"
        )
    return lines


def page(data: dict) -> str:
    """Command, accuracies and costs of one comparison."""
    rows, dense = data["rows"], data["dense"]
    seeds = sorted({row["seed"] for row in rows})
    made = ", ".join(f"{name} {version}" for name, version in data["made_with"].items())
    parts = [
        f"`{data['command']}` (seeds {', '.join(map(str, seeds))}; legr {data['legr']}, {made}). "
        f"Dense: {dense['accuracy']:.2%} of {dense['images']} test images.",
        "Test accuracy after fine-tuning, %"
        + (", mean ± standard deviation:" if len(seeds) > 1 else ":"),
        "\n".join(accuracy(rows, "accuracy")),
        "Test accuracy before fine-tuning, %:",
        "\n".join(accuracy(rows, "before")),
        "Cost of all targets, mean over seeds:",
        "\n".join(costs(rows)),
    ]
    return "\n\n".join(parts)


def brief(data: dict, shares: tuple[float, ...] = (0.2, 0.5, 0.8)) -> str:
    """Accuracy at a few targets and seconds of pruning for all of them, by method."""
    rows = data["rows"]
    seeds = len({row["seed"] for row in rows})
    few = accuracy([row for row in rows if row["share"] in shares], "accuracy")
    lines = [f"{few[0]} pruning, s |", f"{few[1]}---|"]
    for method, line in zip(dict.fromkeys(row["method"] for row in rows), few[2:], strict=True):
        own = [row for row in rows if row["method"] == method and "error" not in row]
        lines.append(f"{line} {sum(row['pruning']['seconds'] for row in own) / seeds:.1f} |")
    return "\n".join(lines)


def read(*files: Path) -> dict:
    """One comparison; several files that differ only in their seeds are merged."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {**found[0], "rows": [row for data in found for row in data["rows"]]}


def put(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of this name in a page."""
    first, last = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, begun, rest = path.read_text(encoding="utf-8").partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        sys.exit(f"{path} has no {first} and {last}")
    path.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--into", nargs=2, metavar=("PAGE", "NAME"))
    given = parser.parse_args()
    text = (brief if given.brief else page)(read(*given.files))
    if given.into:
        put(Path(given.into[0]), given.into[1], text)
    else:
        print(text)
