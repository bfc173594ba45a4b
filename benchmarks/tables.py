"""Print the tables of a comparison as Markdown, or write them to a page.

    python benchmarks/tables.py DIR/compare.json … [--brief] [--into docs/lab/digits.md digits]

`--into PAGE NAME` replaces the text between `<!-- NAME -->` and `<!-- end NAME -->`. `--brief`
prints one short table. Several files are read as one comparison with several seeds.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

Rows = list[dict]


def accuracy(rows: Rows, key: str) -> list[str]:
    """A table of accuracies in percent: a row per method, a column per target."""
    targets = sorted({row["share"] for row in rows})
    lines = ["| | " + " | ".join(f"{share:.0%}" for share in targets) + " |"]
    lines.append("|---" * (len(targets) + 1) + "|")
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for share in targets:
            seeds = [r for r in rows if (r["method"], r["share"]) == (method, share)]
            cells.append(cell([100 * row[key] for row in seeds if key in row], key))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def cell(percents: list[float], key: str) -> str:
    """Format the mean over seeds and, after fine-tuning, its deviation: `91.20 ± 0.11`."""
    if not percents:
        return "–"
    mean = f"{statistics.mean(percents):.2f}"
    several = len(percents) > 1 and key == "accuracy"
    return f"{mean} ± {statistics.stdev(percents):.2f}" if several else mean


def costs(rows: Rows) -> list[str]:
    """A table of the cost of all targets by method, averaged over seeds."""
    lines = ["| | pruning, s | / LeGR's | steps | images | fine-tuning, s | total / LeGR's |"]
    lines.append("|---" * 7 + "|")
    seeds = len({row["seed"] for row in rows})
    totals = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method and "error" not in row]
        totals[method] = {
            (part, unit): sum(row[part][unit] for row in own) / seeds
            for part in ("pruning", "tuning")
            for unit in ("seconds", "steps", "images")
        }
    for method, total in totals.items():
        pruning, tuning = total["pruning", "seconds"], total["tuning", "seconds"]
        legr = totals.get("legr", total)
        legr_pruning, legr_tuning = legr["pruning", "seconds"], legr["tuning", "seconds"]
        lines.append(
            f"| {method} | {pruning:.1f} | {pruning / legr_pruning if legr_pruning else 0:.2f} | "
            f"{total['pruning', 'steps']:.0f} | {total['pruning', 'images']:.0f} | {tuning:.1f} | "
            f"{(pruning + tuning) / ((legr_pruning + legr_tuning) or 1):.2f} |"
        )
    return lines


def page(data: dict) -> str:
    """The command, accuracies and costs of one comparison."""
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
    """A table of the accuracy at some targets and the seconds of pruning for all, by method."""
    rows = data["rows"]
    seeds = len({row["seed"] for row in rows})
    few = accuracy([row for row in rows if row["share"] in shares], "accuracy")
    lines = [f"{few[0]} pruning, s |", f"{few[1]}---|"]
    for method, line in zip(dict.fromkeys(row["method"] for row in rows), few[2:], strict=True):
        own = [row for row in rows if row["method"] == method and "error" not in row]
        lines.append(f"{line} {sum(row['pruning']['seconds'] for row in own) / seeds:.1f} |")
    return "\n".join(lines)


def read(*files: Path) -> dict:
    """Read one comparison; files that differ only in their seeds are merged."""
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {**parts[0], "rows": [row for part in parts for row in part["rows"]]}


def put(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of this name in a page."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, has_start, rest = path.read_text(encoding="utf-8").partition(start)
    _, has_end, after = rest.partition(end)
    if not has_start or not has_end:
        sys.exit(f"{path} does not contain {start} and {end}")
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--into", nargs=2, metavar=("PAGE", "NAME"))
    args = parser.parse_args()
    text = (brief if args.brief else page)(read(*args.files))
    if args.into:
        put(Path(args.into[0]), args.into[1], text)
    else:
        print(text)
