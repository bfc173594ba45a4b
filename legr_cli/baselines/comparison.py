"""The comparison loop: every method at every target with every seed, fine-tuned alike.

The journal has a line for each piece (one method, target and seed). A recorded piece is not
repeated; an interrupted one resumes from the records of its own search, rounds or training.
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from legr_cli.baselines.context import ASIDE, Level, MethodContext
from legr_cli.baselines.effort import Effort
from legr_cli.baselines.methods import METHODS
from legr_cli.baselines.summary import FORMAT, VERSION, is_row
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data
from legr_cli.errors import BudgetError, LegrError, ModelError
from legr_cli.files import staged
from legr_cli.journal import Journal, JournalFormat, Line, is_score
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, write_network
from legr_cli.progress import Event, Progress
from legr_cli.pruning import Analysis, apply_plans, lowest_share, plans
from legr_cli.ranking import write_ranking
from legr_cli.search.setup import run_description
from legr_cli.settings import Compare
from legr_cli.targets import Target, falling
from legr_cli.training.devices import choose
from legr_cli.training.finetune import FinetuneResult, train_setup
from legr_cli.training.loop import evaluate
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.resume import EPOCHS, RunFiles
from legr_cli.training.setup import training_setup
from legr_cli.version import __version__


@dataclass(frozen=True)
class Piece:
    """One network to make."""

    number: int
    seed: int
    method: str
    target: Target


@dataclass(frozen=True)
class ComparisonRun:
    """What is compared, and where it goes."""

    analysis: Analysis
    open_network: Callable[[int], Data]  # by seed: another seed holds out other images
    settings: Compare
    device: str
    folder: Path
    command: str
    tell: Callable[[int, Piece, str], None]  # recorded pieces, the current one, what it does

    def header(self, data: Data, dense: Line) -> Line:
        """First line of the journal; `dense` is the score of the dense network."""
        settings = self.settings
        plain = {
            **{f.name: getattr(settings, f.name) for f in fields(settings)},
            "methods": ",".join(settings.methods),
            "flops": ",".join(f"{target.value:g}" for target in falling(settings.targets)),
            "search_flops": settings.search_flops or None,
            "align": settings.align.name,
            "amp": settings.training.amp,
            "recipe": settings.training.recipe,
            "epochs": settings.training.epochs,
        }
        del plain["training"], plain["targets"]
        return {**run_description(self.analysis, data, plain), "dense": dense}

    def pieces(self) -> list[Piece]:
        """All pieces in order: a method's targets from high to low."""
        settings = self.settings
        every = (
            (seed, method, target)
            for seed in range(settings.seed, settings.seed + settings.repeats)
            for method in settings.methods
            for target in falling(settings.targets)
        )
        return [Piece(number, *what) for number, what in enumerate(every)]


COMPARISON = JournalFormat(
    format="legr-pieces",
    work="comparison",
    command="legr compare",
    key="piece",
    is_header=lambda line: is_score(line.get("dense")),
    is_sound=lambda line, _: type(line.get("piece")) is int and is_row(line),
    error=LegrError,
)


def run_comparison(run: ComparisonRun, book: Journal) -> None:
    """Do all pieces that are not recorded."""
    for name in ("rankings", "pruned", "tuned"):
        (run.folder / name).mkdir(exist_ok=True)
    left = [piece for piece in run.pieces() if piece.number not in book.lines]
    for seed in dict.fromkeys(piece.seed for piece in left):
        data = run.open_network(seed)
        dense = measured(run.device, run.analysis.network, data, "validation")
        for method in dict.fromkeys(piece.method for piece in left if piece.seed == seed):
            mine = [p for p in run.pieces() if (p.seed, p.method) == (seed, method)]
            _take_part(run, book, mine, data, dense)


def _take_part(
    run: ComparisonRun, book: Journal, mine: list[Piece], data: Data, dense: Line
) -> None:
    """One method with one seed; what it cannot do is recorded, too."""
    settings, current = run.settings, mine[0]
    floor = lowest_share(run.analysis, settings.align, settings.min_keep)
    todo = {piece.target: piece for piece in mine if piece.number not in book.lines}

    def tell(text: str) -> None:
        run.tell(len(book.lines), current, text)

    folder = run.folder / "rankings"
    context = MethodContext(
        run.analysis,
        data,
        settings,
        current.seed,
        run.device,
        folder,
        dense,
        tell,
    )
    for piece in todo.values():
        if piece.target.value < floor:
            text = f"{piece.target.value:g} of the FLOPs is out of reach; the lowest is {floor:g}"
            book.add(_refused(piece, f"{text}: lower --min-keep or --align"))
    targets = [piece.target for piece in mine if piece.target.value >= floor]
    wanted = {target for target in targets if target in todo}
    current = next((todo[target] for target in targets if target in todo), current)
    try:
        for level in METHODS[current.method].run(context, targets, wanted):
            current = todo[level.target]
            book.add(_finished(run, context, current, level))
            wanted.discard(level.target)
    except (BudgetError, ModelError) as error:
        for target in targets:
            if target in wanted:
                book.add(_refused(todo[target], str(error)))


def _refused(piece: Piece, reason: str) -> Line:
    """The line of a piece that cannot be made."""
    return {**_about(piece), "error": reason}


def _about(piece: Piece) -> Line:
    """The piece that a line belongs to."""
    return {
        "piece": piece.number,
        "seed": piece.seed,
        "method": piece.method,
        "target": piece.target.label,
        "share": piece.target.value,
    }


def _finished(run: ComparisonRun, context: MethodContext, piece: Piece, level: Level) -> Line:
    """Prune, measure, fine-tune and measure again."""
    context.tell("pruning")
    settings = context.cut(level.target)
    decided = plans(level.analysis, level.ranking, settings)
    [pruned] = apply_plans(level.analysis, level.ranking, settings, decided)
    notes = with_command(pruned.network.notes, run.command)
    network = replace(pruned.network, notes=notes)
    network.model.cpu()
    name = f"{piece.method}-{piece.target.label}-seed{piece.seed}.safetensors"
    entry = METHODS[piece.method]
    with staged() as files:
        write_network(network, files.file(run.folder / "pruned" / name))
        if level.ranking.method == piece.method and "legr" in level.ranking.notes:
            path = context.file(piece.method, level.target if entry.each else None)
            write_ranking(level.ranking, files.file(path))
    before = measured(run.device, network, context.data, "test")
    training = _tuned(run, context, network, run.folder / "tuned" / name)
    after = training.test or training.validation
    assert after is not None  # images are held out
    return {
        **_about(piece),
        "file": f"tuned/{name}",
        "flops": pruned.flops,
        "dense_flops": run.analysis.flops,
        "params": pruned.params,
        "before": before["accuracy"],
        "accuracy": after["accuracy"],
        "images": after["images"],
        "pruning": level.effort.line(),
        "tuning": _tuning_spent(context, training).line(),
    }


def measured(device: str, network: Network, data: Data, split: str) -> Line:
    """Score on the test images, if there are any, or on the held-out ones."""
    part = data.test if split == "test" and data.test is not None else data.validation
    where = choose(device)
    score = evaluate(network.model.to(where), in_order(part, Serving(data.feed, 250, where)))
    network.model.cpu()
    return score.line()


def _tuned(
    run: ComparisonRun, context: MethodContext, network: Network, out: Path
) -> FinetuneResult:
    """Fine-tune a network as all others are fine-tuned."""
    training = replace(run.settings.training, seed=context.seed)
    group = ProcessGroup(choose(run.device))
    setup = training_setup(network, context.data, training, group)
    files = RunFiles(out, resume=True, force=False, kind=replace(EPOCHS, anew=ASIDE))

    def report(event: Event) -> None:
        if isinstance(event, Progress) and event.milestone:
            context.tell(f"fine-tuning, {event}")

    context.tell("fine-tuning")
    result = train_setup(setup, files, progress=report)
    assert result is not None  # this process leads
    return result


def _tuning_spent(context: MethodContext, training: FinetuneResult) -> Effort:
    """What a training took."""
    size = training.settings["batch_size"]
    steps = training.epochs * max(1, len(context.data.train) // size)
    measured = training.epochs * len(context.data.validation)
    return Effort(training.seconds, steps, steps * size + measured)


def comparison(run: ComparisonRun, header: Line, book: Journal) -> Line:
    """compare.json: what was compared and how, and all recorded pieces."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "legr": __version__,
        **header,
        "dense_flops": run.analysis.flops,
        "command": run.command,
        "made_with": {"python": platform.python_version(), "torch": torch.__version__},
        "rows": [book.lines[number] for number in sorted(book.lines)],
    }
