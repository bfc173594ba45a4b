"""`legr demo`."""

import contextlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.errors import LegrError

if TYPE_CHECKING:
    from legr_cli.commands.progress import ProgressDisplay

ARCH, BUDGETS, METHODS = "small_cifar", range(20, 90, 10), ("legr", "uniform")


@dataclass(frozen=True)
class Stage:
    """A step of the demo, and the commands that do it."""

    title: str
    commands: list[list[str]]
    shown: str = ""  # a shorter way to type it


def stages(out: Path) -> list[Stage]:
    """The whole workflow, as commands that a user could type."""
    dense, ranking, page = out / "dense.safetensors", out / "ranking.json", out / "report.html"
    made = [(method, budget) for method in METHODS for budget in BUDGETS]
    tuned = [str(out / "tuned" / f"{method}-{budget}.safetensors") for method, budget in made]
    train = f"finetune --arch {ARCH} --data digits --recipe quick --epochs 12 --resume --out"
    learn = "--data digits --fitness bn --flops 0.3 --candidates 100 --population 32 --sample 8"
    tune = "--data digits --epochs 4 --resume --out"
    prune = ["prune", str(dense), "--flops", "0.2:0.8:0.1", "--ranking"]
    timing = ["--against", str(dense), "--seconds", "0.5", "--out", str(out / "bench.json")]
    pruned = [str(out / method / f"{ARCH}-flops{budget}.safetensors") for method, budget in made]
    return [
        Stage("Train a small network on handwritten digits", [[*train.split(), str(dense)]]),
        Stage(
            "Learn which filters matter, once",
            [["learn", str(dense), *learn.split(), "--resume", "--out", str(ranking)]],
        ),
        Stage(
            "Prune to seven targets by this ranking",
            [[*prune, str(ranking), "--out", str(out / "legr")]],
        ),
        Stage(
            "Prune uniformly to the same targets, for comparison",
            [[*prune, "uniform", "--out", str(out / "uniform")]],
        ),
        Stage(
            "Fine-tune all fourteen networks",
            [["finetune", a, *tune.split(), b] for a, b in zip(pruned, tuned, strict=True)],
        ),
        Stage(
            "Measure their latency",
            [["bench", *tuned, *timing]],
            f"legr bench {shlex.quote(str(out))}/tuned/*.safetensors {shlex.join(timing)}",
        ),
        Stage(
            "Put everything on one page",
            [["report", str(out), "--out", str(page), "--png", str(out / "figures")]],
        ),
    ]


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write everything to.")] = Path(
        "legr-demo"
    ),
    as_json: options.Json = False,
) -> None:
    """Run the whole workflow on bundled data: a few minutes, nothing to download.

    Trains a small network on handwritten digits, learns a ranking, prunes to seven targets,
    fine-tunes, measures, compares with uniform pruning, and writes a report. Each step is a legr
    command, which is shown. If interrupted, run it again to continue.

    Examples:

      legr demo

      legr demo --out my-demo
    """
    import torch

    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.progress import Progress

    _make(out)
    torch.set_num_threads(1)  # a network this small is slower on several
    plan = stages(out)
    total, done = sum(len(stage.commands) for stage in plan), 0
    with (
        ProgressDisplay(sys.stderr) as display,
        (out / "demo.log").open("a", encoding="utf-8") as log,
    ):
        for number, stage in enumerate(plan, 1):
            display.log(f"{number}/{len(plan)} {stage.title}", "bold")
            _show_command(display, stage)
            for words in stage.commands:
                display.report(Progress(done, total, stage.title))
                _run(context.find_root().command, words, log, out)
                done += 1
    _show(out, as_json)


def _make(out: Path) -> None:
    """Make the folders; a file in their place is an error."""
    from legr_cli.files import check_folder

    check_folder(out, "demo.log")
    (out / "tuned").mkdir(parents=True, exist_ok=True)


def _show_command(display: "ProgressDisplay", stage: Stage) -> None:
    """Print the command of a stage, and how many more like it there are."""
    first, *more = stage.commands
    whole = shlex.join(["legr", *(word for word in first if word != "--resume")])
    shown = stage.shown or whole
    display.log(f"  {shown}" + (f"   … and {len(more)} more" if more else ""))


def _run(legr: Any, words: list[str], log: Any, out: Path) -> None:
    """Run a legr command in this process; what it prints goes to the log."""
    log.write(f"\n$ {shlex.join(['legr', *words])}\n")
    log.flush()
    if words[0] == "bench" and Path(words[-1]).exists():
        return
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        code = legr.main(words, prog_name="legr", standalone_mode=False)
    if code == 130:
        raise KeyboardInterrupt(
            f"interrupted; continue with: legr demo --out {shlex.quote(str(out))}"
        )
    if code:
        log.flush()
        *_, last = (out / "demo.log").read_text(encoding="utf-8").strip().splitlines()
        raise LegrError(f"a step failed ({last.removeprefix('legr: ')}); see {out}/demo.log")


def _show(out: Path, as_json: bool) -> None:
    """Print accuracy and latency of each network, and the name of the report."""
    from legr_cli.commands import output
    from legr_cli.reports.collect import collect

    nets = collect([out]).networks
    page = str(out / "report.html")
    if as_json:
        rows = [
            {
                "file": str(net.file),
                "method": net.method,
                "flops": net.flops,
                "flops_share": net.share,
                "accuracy": net.accuracy,
                "ms": net.latencies[0].ms if net.latencies else None,
            }
            for net in nets
        ]
        output.print_json({"report": page, "networks": rows})
        return
    columns = ("network", "FLOPs", "of dense", "test accuracy", "ms", "of dense ")
    table = output.table("Results", *columns, left=("network",))
    for net in nets:
        latency = net.latencies[0] if net.latencies else None
        table.add_row(
            net.label,
            output.format_count(net.flops or 0),
            f"{net.share or 0:.1%}",
            "" if net.accuracy is None else f"{net.accuracy:.2%}",
            "" if latency is None else f"{latency.ms:.3g}",
            "" if latency is None else f"{latency.ratio:.1%}",
        )
    output.print_table(output.console(stderr=False), table)
    output.print_result(page)
