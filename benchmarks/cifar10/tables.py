"""Turn the raw results of run.py into the tables of docs/results.md and docs/lab/.

    python benchmarks/cifar10/tables.py docs/results/cifar10 docs/results.md docs/lab/*.md

fills every marked part of these pages for which there are raw results; without pages, it prints the
tables.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import repaired as repair_results
import tables
from repaired import percent


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def history(path: Path) -> list[dict]:
    """Read the candidates of a search, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return sorted(map(json.loads, lines), key=lambda line: line["candidate"])


def grid(head: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def ranks(numbers: list[float]) -> list[float]:
    """Rank each number; ties share their mean rank."""
    return [sum(y < x for y in numbers) + (numbers.count(x) - 1) / 2 for x in numbers]


def seeds20(raw: Path) -> dict:
    """Read the comparison of ResNet-20, all seeds merged."""
    return tables.read(*sorted(raw.glob("resnet20/seed*/compare.json")))


def resnet20(raw: Path) -> str:
    """ResNet-20 at seven budgets, all seeds."""
    return tables.page(seeds20(raw))


def seven(raw: Path) -> str:
    """Repaired, and after one epoch with the teacher: every method at every budget."""
    parts = []
    for arch, name in repair_results.NAMES.items():
        rows = _seven_rows(raw, arch)
        if not rows:
            continue
        for key, stage in (("before", "repaired, no training"), ("accuracy", "after one epoch")):
            parts.append("\n".join([f"{name}, {stage}:", "", *tables.accuracy(rows, key)]))
        cells = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == method]
            seeds = sorted({row["seed"] for row in own})
            search = sum(row["pruning"]["seconds"] for row in own) / len(seeds)
            cells.append([method, ", ".join(map(str, seeds)), f"{search:.0f}"])
        parts.append(grid([f"{name}, all budgets", "seeds", "pruning, s"], cells))
    if not parts:
        raise FileNotFoundError(raw / "seven")
    return "\n\n".join(parts)


def _seven_rows(raw: Path, arch: str) -> list[dict]:
    """The networks of all journals, LeGR's first."""
    rows = []
    for journal in sorted((raw / "seven" / arch).glob("seed*/*/compare.jsonl")):
        rows += map(json.loads, journal.read_text(encoding="utf-8").splitlines()[1:])
    return sorted(rows, key=lambda row: (ORDER.index(row["method"]), row["seed"]))


ORDER = ("legr", "norm", "uniform", "amc", "taylor")  # of the methods in `seven`


def defaults(raw: Path) -> str:
    """Repaired networks by a ranking that was learned with the defaults, and by others."""
    folder = raw / "defaults/resnet56"
    found = {
        method: {
            int(Path(score["file"]).stem.rpartition("flops")[2]): percent(score["accuracy"])
            for score in read_json(folder / f"{method}.scores.json")["scores"]
        }
        for method in ORDER[:3]
    }
    shares = sorted(found["legr"])
    rows = [[method, *(by.get(share, "") for share in shares)] for method, by in found.items()]
    return grid(["", *(f"{share}%" for share in shares)], rows)


def resnet56(raw: Path) -> str:
    """ResNet-56 at two budgets: accuracy before and after, seconds of every stage."""
    data = tables.read(raw / "resnet56/compare.json")
    rows = []
    for row in data["rows"]:
        kept = row["flops"] / row["dense_flops"]
        cells = [row["method"], f"{kept:.1%}", f"{row['params'] / 1e3:.0f} k"]
        cells += [percent(row["before"]), percent(row["accuracy"])]
        rows.append([*cells, f"{row['pruning']['seconds']:.0f}", f"{row['tuning']['seconds']:.0f}"])
    learned = f"{read_json(raw / 'best/ranking.learned.json')['seconds']:.0f}"
    for name, path, seconds in (
        ("legr, `--teacher`", "taught/resnet56-47-tuned", "as above"),
        ("legr, `--teacher`, `--lr 0.015`", "taught/resnet56-47-slower", "as above"),
        ("legr, learned at 47 %", "there/resnet56-47-tuned", learned),
    ):
        made = read_json(raw / f"{path}.json")
        after = [percent(made["test"]["accuracy"]), seconds, f"{made['seconds']:.0f}"]
        rows.append([name, "≤ 47 %", "", "", *after])
    head = ["", "FLOPs", "parameters", "before, %", "after, %", "search, s", "fine-tuning, s"]
    return f"`{data['command']}`\n\n{grid(head, rows)}"


def best(raw: Path) -> str:
    """The three fine-tunings of ResNet-56 over 20 epochs."""
    rows = []
    for name, path in (
        ("blocks of 4, 50,000 images (the commands above)", "best/best-tuned"),
        ("the same with `--lr 0.02`", "best/best-slower"),
        ("earlier: blocks of 8, 45,000 images", "earlier-best/best-tuned"),
    ):
        made = read_json(raw / f"{path}.json")
        rate, seconds = f"{made['settings']['lr']:g}", f"{made['seconds']:.0f}"
        rows.append([name, rate, percent(made["test"]["accuracy"]), seconds])
    return grid(["", "learning rate", "test accuracy, %", "fine-tuning, s"], rows)


def zeta(raw: Path) -> str:
    """Rankings learned at one budget or two, used at all budgets."""
    compared = {
        p.parent.name: read_json(p)["rows"] for p in sorted(raw.glob("zeta/*/compare.json"))
    }
    if not compared:
        raise FileNotFoundError(raw / "zeta")
    shares = sorted({row["share"] for rows in compared.values() for row in rows})
    lines = []
    seed0 = read_json(raw / "resnet20/seed0/compare.json")["rows"]
    others = {"legr": "20 % and 40 % (60 candidates of 40 steps)", "uniform": "uniform pruning"}
    named = {name.replace("-", " % and ") + " %": rows for name, rows in compared.items()}
    named |= {name: [row for row in seed0 if row["method"] == key] for key, name in others.items()}
    for name, rows in named.items():
        reached = {row["share"]: percent(row["accuracy"]) for row in rows}
        lines.append([name, *(reached.get(share, "") for share in shares)])
    return grid(["learned at", *(f"{share:.0%}" for share in shares)], lines)


FITNESS = {
    "0": "`none`",
    "10": "`finetune`, 10 steps",
    "50": "`finetune`, 50 steps",
    "200": "`finetune`, 200 steps",
    "bn": "`bn`",
    "repair": "`repair`",
}


def tuned_candidates(folder: Path) -> list[float]:
    """Test accuracies of the 14 candidates after one epoch."""
    return [
        read_json(folder / f"candidate{n}-seed0-tuned.json")["test"]["accuracy"] for n in range(14)
    ]


def tau(raw: Path) -> str:
    """How well each fitness predicts the accuracy after one epoch."""
    after = tuned_candidates(raw / "tau")
    rows = []
    for name, label in FITNESS.items():
        lines = history(raw / f"tau/tau-{name}.history.jsonl")
        fitness = [_fitness(lines[n]) for n in range(len(after))]
        seconds = [line["seconds"] for line in lines if "seconds" in line]
        linear = statistics.correlation(fitness, after)
        ranked = statistics.correlation(ranks(fitness), ranks(after))
        chosen = after[max(range(len(after)), key=fitness.__getitem__)]
        accuracy = [100 * lines[n]["accuracy"] for n in range(len(after))]
        cells = [f"{min(accuracy):.1f} to {max(accuracy):.1f}", f"{linear:.2f}"]
        cells += [f"{ranked:.2f}", percent(chosen), f"{statistics.median(seconds):.1f}"]
        rows.append([label, *cells])
    head = ["`--fitness`", "accuracies, %", "Pearson", "Spearman", "its best, fine-tuned, %"]
    return grid([*head, "s per candidate"], rows)


def _fitness(line: dict) -> float:
    """What a candidate was ranked by: its accuracy, or its closeness to the dense network."""
    return -line["divergence"] if "divergence" in line else line["accuracy"]


def repaired(raw: Path) -> str:
    """ResNets cut, repaired, and tuned for one epoch."""
    head = ["", "FLOPs", "ranking", "cut, %", "repaired, %", "after one epoch, %"]
    return grid(head, repair_results.rows(raw))


def spread(raw: Path) -> str:
    """The range of accuracies of the candidates in the fitness table."""
    after = tuned_candidates(raw / "tau")
    low, mean, high = map(percent, (min(after), statistics.mean(after), max(after)))
    return f"After one epoch, the {len(after)} candidates reach {low} to {high} %, mean {mean} %."


def candidates(raw: Path) -> str:
    """The best of the first N candidates, before and after fine-tuning."""
    folder = raw / "candidates"
    lines = history(folder / "search.history.jsonl")
    rows = []
    for count in (2, 50, 100, 200, 400):
        best = max(lines[:count], key=lambda line: line["accuracy"])
        files = folder.glob(f"candidate{best['candidate']}-seed*-tuned.json")
        after = [100 * read_json(path)["test"]["accuracy"] for path in files]
        seconds = sum(line.get("seconds", 0.0) for line in lines[:count])
        cells = [
            f"#{best['candidate'] + 1}",
            percent(best["accuracy"]),
            f"{statistics.mean(after):.2f}",
        ]
        rows.append([str(count), *cells, f"{seconds:.0f}"])
    head = ["candidates", "best one", "its fitness, %", "fine-tuned, %", "search, s"]
    return grid(head, rows)


def latency(raw: Path) -> str:
    """x86 latency and A57 instructions relative to dense, by method and budget."""
    parts = []
    for arch in ("resnet20", "resnet56"):
        data = read_json(raw / f"latency/{arch}-bench.json")
        name = f"{arch}: latency / dense ({data['models'][0]['median_ms']:.3f} ms)"
        parts.append(_over_dense(name, data["models"], "median_ms"))
        counted = raw / f"latency/{arch}-a57.json"
        if counted.exists():
            models = read_json(counted)["models"]
            name = f"{arch}: A57 instructions / dense ({models[0]['instructions'] / 1e6:.1f} M)"
            parts.append(_over_dense(name, models, "instructions"))
    return "\n\n".join(parts)


def _over_dense(name: str, models: list[dict], key: str) -> str:
    """A row per method and alignment, a column per budget; slopes in parentheses."""
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


def ratios(raw: Path, arch: str, kind: str, cut: str) -> dict[int, float]:
    """Cost relative to dense of the networks in one folder (`legr-align-auto`), by budget."""
    dense, *models = read_json(raw / f"latency/{arch}-{kind}.json")["models"]
    key = "median_ms" if kind == "bench" else "instructions"
    return {
        int(Path(model["file"]).stem.rpartition("flops")[2]): model.get(
            "ratio", model[key] / dense[key]
        )
        for model in models
        if Path(model["file"]).parent.name == cut
    }


def headline(raw: Path) -> str:
    """Accuracy, latency and cost of four networks."""
    deep, shallow = read_json(raw / "resnet56/compare.json"), seeds20(raw)
    rows = [_best_row(raw, deep)]
    for number, name, data, share in (
        ("2", "ResNet-56", deep, 0.2),
        ("3", "ResNet-20", shallow, 0.5),
        ("3", "ResNet-20", shallow, 0.2),
    ):
        legr = [row for row in data["rows"] if row["method"] == "legr"]
        by_seed = [row for row in legr if row["share"] == share]
        after = tables.cell([100 * row["accuracy"] for row in by_seed], "accuracy")
        search = sum(row["pruning"]["seconds"] for row in legr) / len(by_seed)
        tuning = statistics.mean(row["tuning"]["seconds"] for row in by_seed)
        kept = statistics.mean(row["flops"] / row["dense_flops"] for row in by_seed)
        arch = name.lower().replace("-", "")
        cells = [
            number,
            name,
            f"{kept:.1%}",
            f"{after} (dense {percent(data['dense']['accuracy'])})",
        ]
        cells += _speed(raw, arch, "legr-align-1", round(100 * share))
        rows.append([*cells, _minutes(search), _minutes(tuning)])
    head = ["command", "network", "FLOPs kept", "test accuracy, %", "x86 latency / dense"]
    return grid([*head, "A57 instructions / dense", "search", "fine-tuning"], rows)


def _best_row(raw: Path, data: dict) -> list[str]:
    """The row of ResNet-56 after 20 epochs."""
    made = read_json(raw / "best/best-tuned.json")
    learned = read_json(raw / "best/ranking.learned.json")
    kept = learned["best"]["flops"] / data["dense_flops"]
    accuracy = f"{percent(made['test']['accuracy'])} (dense {percent(data['dense']['accuracy'])})"
    cells = ["1", "ResNet-56", f"{kept:.1%}", accuracy]
    cells += _speed(raw, "resnet56", "best-align-4", 47)
    return [*cells, _minutes(learned["seconds"]), _minutes(made["seconds"])]


def _speed(raw: Path, arch: str, cut: str, share: int) -> list[str]:
    """x86 latency and A57 instructions relative to dense: `0.71`, `0.56`."""
    return [f"{ratios(raw, arch, kind, cut)[share]:.2f}" for kind in ("bench", "a57")]


def _minutes(seconds: float) -> str:
    """Format seconds as minutes: `8.8 min`."""
    return f"{seconds / 60:.1f} min"


def budgets(raw: Path) -> str:
    """Accuracy of ResNet-20 by method and budget."""
    return "\n".join(tables.accuracy(seeds20(raw)["rows"], "accuracy"))


def deep(raw: Path) -> str:
    """Accuracy of ResNet-56 by method and budget."""
    rows = read_json(raw / "resnet56/compare.json")["rows"]
    there = percent(read_json(raw / "there/resnet56-47-tuned.json")["test"]["accuracy"])
    lines = tables.accuracy(rows, "accuracy")
    return "\n".join([*lines, f"| legr, learned at 47 % instead | – | {there} |"])


def cost(raw: Path) -> str:
    """Seconds of search and fine-tuning by method, for all budgets together."""
    rows = []
    for name, data in (
        ("ResNet-20, 7 budgets", seeds20(raw)),
        ("ResNet-56, 2 budgets", read_json(raw / "resnet56/compare.json")),
    ):
        seeds = len({row["seed"] for row in data["rows"]})
        for method in ("uniform", "norm", "legr"):
            own = [row for row in data["rows"] if row["method"] == method]
            search = sum(row["pruning"]["seconds"] for row in own) / seeds
            tuning = sum(row["tuning"]["seconds"] for row in own) / seeds
            rows.append([name, method, f"{search:.0f}", f"{tuning:.0f}", f"{search + tuning:.0f}"])
    return grid(["", "method", "search, s", "fine-tuning, s", "total, s"], rows)


def speed(raw: Path) -> str:
    """Cost relative to dense of the networks of the learned rankings."""
    lines = []
    for arch, kind, cut in (
        *(("resnet20", *column) for column in SPEEDS),
        *(("resnet56", *column) for column in SPEEDS),
    ):
        title = "x86 latency" if kind == "bench" else "A57 instructions"
        align = cut.rpartition("-")[2]
        name = f"{arch.replace('resnet', 'ResNet-')}, {title}, `--align {align}`"
        lines.append((name, ratios(raw, arch, kind, cut)))
    shares = sorted({share for _, line in lines for share in line})
    rows = [
        [name, *(f"{line[share]:.2f}" if share in line else "" for share in shares)]
        for name, line in lines
    ]
    return grid(["cost / dense, at FLOPs kept", *(f"{share}%" for share in shares)], rows)


SPEEDS = (  # measurement and folder of pruned networks
    ("bench", "legr-align-auto"),
    ("bench", "legr-align-1"),
    ("a57", "legr-align-arm"),
)


def teacher(raw: Path) -> str:
    """ResNet-56 at 47 %, fine-tuned with and without the dense network as the teacher."""
    alone = next(
        row["accuracy"]
        for row in read_json(raw / "resnet56/compare.json")["rows"]
        if (row["method"], row["share"]) == ("legr", 0.47)
    )
    rows = []
    for path, without in (
        ("taught/resnet56-47-tuned", percent(alone)),
        ("taught/resnet56-47-slower", "not run"),
        ("best/best-tuned", "not run"),
        ("best/best-slower", "not run"),
    ):
        made = read_json(raw / f"{path}.json")
        cells = [str(made["epochs"]), f"{made['settings']['lr']:g}", without]
        rows.append([*cells, percent(made["test"]["accuracy"])])
    return grid(["epochs", "learning rate", "without teacher, %", "with `--teacher`, %"], rows)


PARTS: dict[str, Callable[[Path], str]] = {
    f"cifar10 {part.__name__}": part
    for part in (
        *(resnet20, resnet56, best, zeta, tau, spread, candidates, latency, repaired),  # docs/lab/
        *(seven, defaults, headline, budgets, deep, cost, speed, teacher),  # docs/results.md
    )
}


def main(raw: Path, pages: list[Path]) -> None:
    """Write every table to the pages that have its markers, or print it."""
    for name, part in PARTS.items():
        try:
            text = part(raw)
        except (OSError, ValueError, LookupError, statistics.StatisticsError) as error:
            print(
                f"{name}: raw results are missing ({type(error).__name__}: {error})",
                file=sys.stderr,
            )
            continue
        places = [page for page in pages if f"<!-- {name} -->" in page.read_text(encoding="utf-8")]
        for page in places:
            tables.put(page, name, text)
        if not pages:
            print(f"## {name}\n\n{text}\n")
        elif not places:
            print(f"{name}: no page has its markers", file=sys.stderr)


if __name__ == "__main__":
    raw, *pages = map(Path, sys.argv[1:])
    main(raw, pages)
