"""`legr demo`: the whole workflow, as commands that a user could type."""

import contextlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.errors import LegrError

if TYPE_CHECKING:
    from legr_cli.commands.progress import ProgressDisplay

ARCH, BUDGETS, METHODS = "small_cifar", range(20, 90, 10), ("legr", "uniform")
_WITHOUT_RESUME = {"repair", "evaluate", "bench"}  # they write everything at once, or nothing


@dataclass(frozen=True)
class Stage:
    """A step of the demo, and the legr commands that do it; OUT stands for the demo's folder."""

    title: str
    commands: tuple[str, ...]


def stages() -> list[Stage]:
    """The whole workflow."""
    train = "--data digits --recipe quick --epochs 12 --resume"
    search = "--candidates 40 --resume"
    prune = "prune OUT/dense.safetensors --flops 0.2:0.8:0.1 --ranking"
    dense = "--dense OUT/dense.safetensors"
    tune = "--data digits --epochs 2 --teacher OUT/dense.safetensors --resume"
    both = "OUT/legr/*.safetensors OUT/uniform/*.safetensors OUT/repaired/*/*.safetensors"
    tuning = (
        f"finetune OUT/repaired/{method}/{ARCH}-flops{budget}.safetensors {tune} "
        f"--out OUT/tuned/{method}-{budget}.safetensors"
        for method in METHODS
        for budget in BUDGETS
    )
    steps = {
        "Train a small network on handwritten digits": [
            f"finetune --arch {ARCH} {train} --out OUT/dense.safetensors"
        ],
        "Learn which filters matter, once": [
            f"learn OUT/dense.safetensors --data digits {search} --out OUT/ranking.json"
        ],
        "Prune to seven targets by this ranking": [f"{prune} OUT/ranking.json --out OUT/legr"],
        "Prune uniformly to the same targets, for comparison": [
            f"{prune} uniform --out OUT/uniform"
        ],
        "Repair them: a few images, no labels, no training": (
            f"repair OUT/{method}/*.safetensors {dense} --data digits --out OUT/repaired/{method}"
            for method in METHODS
        ),
        "Measure what repair is worth": [f"evaluate {both} --data digits --out OUT/scores.json"],
        "Fine-tune all fourteen networks": tuning,
        "Measure their latency": [
            "bench OUT/tuned/*.safetensors --against OUT/dense.safetensors --seconds 0.5 "
            "--out OUT/bench.json"
        ],
        "Put everything on one page": ["report OUT --out OUT/report.html --png OUT/figures"],
    }
    return [Stage(title, tuple(commands)) for title, commands in steps.items()]


def demo(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write all results to.")
    ] = Path("legr-demo"),
    as_json: options.Json = False,
) -> None:
    """Run the whole workflow on bundled data: a few minutes, nothing to download.

    Trains a small network on handwritten digits, learns a ranking, prunes to seven targets,
    repairs, fine-tunes, measures, compares with uniform pruning, and writes a report. Each step is
    a legr command, which the demo prints. If interrupted, run it again to continue.

    Examples:

      legr demo

      legr demo --out my-demo
    """
    import torch

    from legr_cli.commands.demo_view import show_results
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.progress import Progress

    _make_folders(out)
    torch.set_num_threads(1)  # a network this small is slower on several
    plan, done = stages(), 0
    total = sum(len(stage.commands) for stage in plan)
    with (
        ProgressDisplay(sys.stderr) as display,
        (out / "demo.log").open("a", encoding="utf-8") as log,
    ):
        for number, stage in enumerate(plan, 1):
            display.log(f"{number}/{len(plan)} {stage.title}", "bold")
            _show_command(display, stage, out)
            for command in stage.commands:
                display.report(Progress(done, total, stage.title))
                _run(context.find_root().command, _words(command, out), log, out)
                done += 1
    show_results(out, as_json)


def _make_folders(out: Path) -> None:
    """Create the folders; a file in their place is an error."""
    from legr_cli.files import check_folder

    check_folder(out, "demo.log")
    for folder in ("repaired", "tuned"):
        (out / folder).mkdir(parents=True, exist_ok=True)


def _show_command(display: "ProgressDisplay", stage: Stage, out: Path) -> None:
    """Print the first command of a stage, and how many more like it there are."""
    first, *more = stage.commands
    typed = first.replace(" --resume", "").replace("OUT", shlex.quote(str(out)))
    display.log(f"  legr {typed}" + (f"   … and {len(more)} more" if more else ""))


def _words(command: str, out: Path) -> list[str]:
    """The words of a command as a shell passes them: OUT and wildcards are replaced."""
    words = list[str]()
    for word in command.split():
        found = sorted(out.glob(word.removeprefix("OUT/"))) if "*" in word else []
        words += map(str, found) if found else [word.replace("OUT", str(out))]
    return words


def _run(legr: Any, words: list[str], log: IO[str], out: Path) -> None:
    """Run a legr command in this process; what it prints goes to the log."""
    log.write(f"\n$ {shlex.join(['legr', *words])}\n")
    log.flush()
    if words[0] in _WITHOUT_RESUME and Path(words[-1]).exists():
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
