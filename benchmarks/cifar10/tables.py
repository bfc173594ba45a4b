"""The raw results of run.py as the tables of docs/results.md.

    python benchmarks/cifar10/tables.py docs/results/cifar10 docs/results.md

fills each part of the page whose results are there; `python benchmarks/cifar10/tables.py
docs/results/cifar10` prints them.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import tables


def data_of(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def history(path: Path) -> list[dict]:
    """The candidates of a search, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return sorted(map(json.loads, lines), key=lambda line: line["candidate"])


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def percent(share: float) -> str:
    """`91.73`."""
    return f"{100 * share:.2f}"


def ranks(numbers: list[float]) -> list[float]:
    """Places in order; equal ones share the middle of theirs."""
    return [sum(y < x for y in numbers) + (numbers.count(x) - 1) / 2 for x in numbers]


def resnet20(raw: Path) -> str:
    """Seven budgets, all seeds."""
    return tables.page(tables.read(*sorted(raw.glob("resnet20/seed*/compare.json"))))


def resnet56(raw: Path) -> str:
    """Two budgets, before and after, with the seconds of every stage."""
    data = tables.read(raw / "resnet56/compare.json")
    rows = []
    for row in data["rows"]:
        kept = row["flops"] / row["dense_flops"]
        cells = [row["method"], f"{kept:.1%}", f"{row['params'] / 1e3:.0f} k"]
        cells += [percent(row["before"]), percent(row["accuracy"])]
        rows.append([*cells, f"{row['pruning']['seconds']:.0f}", f"{row['tuning']['seconds']:.0f}"])
    learned = f"{data_of(raw / 'best/ranking.learned.json')['seconds']:.0f}"
    for name, path, seconds in (
        ("legr, `--teacher`", "taught/resnet56-47-tuned", "as above"),
        ("legr, `--teacher`, `--lr 0.015`", "taught/resnet56-47-slower", "as above"),
        ("legr, learned at 47 %", "there/resnet56-47-tuned", learned),
    ):
        made = data_of(raw / f"{path}.json")
        after = [percent(made["test"]["accuracy"]), seconds, f"{made['seconds']:.0f}"]
        rows.append([name, "≤ 47 %", "", "", *after])
    head = ["", "FLOPs", "parameters", "before, %", "after, %", "learning, s", "tuning, s"]
    return f"`{data['command']}`\n\n{grid(head, rows)}"


def zeta(raw: Path) -> str:
    """Rankings learned at one share, used at all."""
    found = {p.parent.name: data_of(p)["rows"] for p in sorted(raw.glob("zeta/*/compare.json"))}
    if not found:
        raise FileNotFoundError(raw / "zeta")
    shares = sorted({row["share"] for rows in found.values() for row in rows})
    lines = []
    above = data_of(raw / "resnet20/seed0/compare.json")["rows"]
    analysis = {"legr": "20 % and 40 %, as above", "uniform": "uniform, as above"}
    named = {name.replace("-", " % and ") + " %": rows for name, rows in found.items()}
    named |= {
        name: [row for row in above if row["method"] == key] for key, name in analysis.items()
    }
    for name, rows in named.items():
        reached = {row["share"]: percent(row["accuracy"]) for row in rows}
        lines.append([name, *(reached.get(share, "") for share in shares)])
    return grid(["learned at", *(f"{share:.0%}" for share in shares)], lines)


def tau(raw: Path) -> str:
    """How well each fitness tells what an epoch makes of a candidate."""
    folder = raw / "tau"
    lines = {p.stem[4:-8]: history(p) for p in folder.glob("tau-*.history.jsonl")}
    numbers = [n for n in range(14) if (folder / f"candidate{n}-seed0-tuned.json").exists()]
    made = [data_of(folder / f"candidate{n}-seed0-tuned.json") for n in numbers]
    after = [found["test"]["accuracy"] for found in made]
    rows = []
    for name in ("0", "10", "50", "200", "bn"):
        fitness = [lines[name][n]["accuracy"] for n in numbers]
        seconds = [line["seconds"] for line in lines[name] if "seconds" in line]
        linear = statistics.correlation(fitness, after)
        ranked = statistics.correlation(ranks(fitness), ranks(after))
        chosen = after[max(range(len(numbers)), key=fitness.__getitem__)]
        cells = [f"{min(fitness):.1%} … {max(fitness):.1%}", f"{linear:.2f}", f"{ranked:.2f}"]
        rows.append([name, *cells, percent(chosen), f"{statistics.median(seconds):.1f}"])
    head = ["τ̂", "fitness", "correlation", "by rank", "its best, tuned, %", "s a candidate"]
    span = (
        f"{percent(min(after))} to {percent(max(after))} %, mean {percent(sum(after) / len(after))}"
    )
    return f"{grid(head, rows)}\n\n{len(numbers)} candidates; tuned they reach {span}."


def candidates(raw: Path) -> str:
    """What more candidates bring."""
    folder = raw / "candidates"
    lines = history(folder / "search.history.jsonl")
    rows = []
    for count in (2, 50, 100, 200, 400):
        best = max(lines[:count], key=lambda line: line["accuracy"])
        files = folder.glob(f"candidate{best['candidate']}-seed*-tuned.json")
        after = [100 * data_of(path)["test"]["accuracy"] for path in files]
        seconds = sum(line.get("seconds", 0.0) for line in lines[:count])
        cells = [
            f"#{best['candidate'] + 1}",
            percent(best["accuracy"]),
            f"{statistics.mean(after):.2f}",
        ]
        rows.append([str(count), *cells, f"{seconds:.0f}"])
    head = ["candidates", "the best", "its fitness, %", "tuned, %", "seconds of search"]
    return grid(head, rows)


def latency(raw: Path) -> str:
    """Latency on this CPU and instructions on the A57, over dense, by method and budget."""
    parts = []
    for arch in ("resnet20", "resnet56"):
        data = data_of(raw / f"latency/{arch}-bench.json")
        name = f"{arch}: latency over dense ({data['models'][0]['median_ms']:.3f} ms)"
        parts.append(_over_dense(name, data["models"], "median_ms"))
        counted = raw / f"latency/{arch}-a57.json"
        if counted.exists():
            models = data_of(counted)["models"]
            name = f"{arch}: A57 instructions over dense ({models[0]['instructions'] / 1e6:.1f} M)"
            parts.append(_over_dense(name, models, "instructions"))
    return "\n\n".join(parts)


def _over_dense(name: str, models: list[dict], key: str) -> str:
    """A line for each method and alignment, a column for each target, slopes in brackets."""
    dense, *rest = models
    lines: dict[str, dict[int, str]] = {}
    for model in rest:
        path = Path(model["file"])
        share = int(path.stem.rpartition("flops")[2])
        ratio = model.get("ratio", model[key] / dense[key])
        slope = (1 - ratio) / (1 - model["flops"] / dense["flops"])
        method = path.parent.name.replace("-align-", ", `--align ") + "`"
        lines.setdefault(method, {})[share] = f"{ratio:.2f} ({slope:.2f})"
    shares = sorted({share for line in lines.values() for share in line})
    rows = [[method, *(line.get(share, "") for share in shares)] for method, line in lines.items()]
    return grid([name, *(f"{share} %" for share in shares)], rows)


PARTS: dict[str, Callable[[Path], str]] = {
    f"cifar10 {part.__name__}": part
    for part in (resnet20, resnet56, zeta, tau, candidates, latency)
}


if __name__ == "__main__":
    raw, *page = map(Path, sys.argv[1:])
    for name, part in PARTS.items():
        try:
            text = part(raw)
        except (OSError, ValueError, LookupError, statistics.StatisticsError) as error:
            print(f"{name}: not there yet ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        if page and f"<!-- {name} -->" not in page[0].read_text(encoding="utf-8"):
            print(f"{name}: the page has no place for it", file=sys.stderr)
        elif page:
            tables.put(page[0], name, text)
        else:
            print(f"## {name}\n\n{text}\n")
