"""The comparison loop: every method at every target with every seed, fine-tuned alike.

The journal has a line for each piece (one method, target and seed). A recorded piece is not
repeated; an interrupted one resumes from the records of its own search, rounds or training.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from legr_cli.baselines.context import (
    DAMAGED_ADVICE,
    MethodContext,
    MethodResult,
    reference_for,
)
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
from legr_cli.repairs.pictures import RepairImages, training_pictures
from legr_cli.repairs.repair import repair_network
from legr_cli.search.setup import run_description
from legr_cli.settings import Compare, Repair
from legr_cli.targets import Target, falling
from legr_cli.training.devices import choose
from legr_cli.training.finetune import FinetuneResult, train_setup
from legr_cli.training.loop import evaluate
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.resume import EPOCHS, RunFiles
from legr_cli.training.scores import ACCURACY, first_figure, headline
from legr_cli.training.setup import training_setup
from legr_cli.training.tasks import CLASSIFICATION, Task, with_targets
from legr_cli.version import __version__


@dataclass(frozen=True)
class Piece:
    """A unit of work: prune and fine-tune with one method, at one target, with one seed."""

    number: int
    seed: int
    method: str
    target: Target


@dataclass(frozen=True)
class ComparisonRun:
    """The inputs of a comparison, and the folder for its results."""

    analysis: Analysis
    open_data: Callable[[int], Data]  # for a seed, which selects the held-out images
    settings: Compare
    device: str
    folder: Path
    command: str
    report: Callable[[int, Piece, str], None]  # number of recorded pieces, current one, its step
    task: Task = CLASSIFICATION

    def header(self, data: Data, dense: Line) -> Line:
        """The header of the journal; `dense` is the score of the dense network."""
        settings = self.settings
        stored = {
            **{f.name: getattr(settings, f.name) for f in fields(settings)},
            "methods": ",".join(settings.methods),
            "flops": ",".join(f"{target.value:g}" for target in falling(settings.targets)),
            "search_flops": settings.search_flops or None,
            "align": settings.align.name,
            "amp": settings.training.amp,
            "recipe": settings.training.recipe,
            "epochs": settings.training.epochs,
        }
        del stored["training"], stored["targets"]
        about = run_description(self.analysis, data, stored)
        return {**about, **self.task.record, "dense": dense}

    def pieces(self) -> list[Piece]:
        """All pieces in order; a method's targets go from high to low."""
        settings = self.settings
        keys = (
            (seed, method, target)
            for seed in range(settings.seed, settings.seed + settings.repeats)
            for method in settings.methods
            for target in falling(settings.targets)
        )
        return [Piece(number, *key) for number, key in enumerate(keys)]


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
    """Do all pieces that are not recorded yet."""
    for name in ("rankings", "pruned", "tuned"):
        (run.folder / name).mkdir(exist_ok=True)
    remaining = [piece for piece in run.pieces() if piece.number not in book.lines]
    for seed in dict.fromkeys(piece.seed for piece in remaining):
        data = run.open_data(seed)
        dense = score_of(run, run.analysis.network, data, "validation")
        for method in dict.fromkeys(piece.method for piece in remaining if piece.seed == seed):
            pieces = [p for p in run.pieces() if (p.seed, p.method) == (seed, method)]
            _run_method(run, book, pieces, data, dense)


def _run_method(
    run: ComparisonRun, book: Journal, pieces: list[Piece], data: Data, dense: Line
) -> None:
    """Run one method with one seed; targets that it cannot reach are recorded with the reason."""
    settings, current = run.settings, pieces[0]
    lowest = lowest_share(run.analysis, settings.align, settings.min_keep)
    todo = {piece.target: piece for piece in pieces if piece.number not in book.lines}

    def report(text: str) -> None:
        run.report(len(book.lines), current, text)

    folder = run.folder / "rankings"
    context = MethodContext(
        run.analysis,
        data,
        settings,
        current.seed,
        run.device,
        folder,
        dense,
        report,
        run.task,
    )
    for piece in todo.values():
        if piece.target.value < lowest:
            text = f"{piece.target.value:g} of the FLOPs cannot be reached: the lowest is"
            book.add(_failed_line(piece, f"{text} {lowest:g}; lower --min-keep or --align"))
    targets = [piece.target for piece in pieces if piece.target.value >= lowest]
    missing = {target for target in targets if target in todo}
    current = next((todo[target] for target in targets if target in todo), current)
    try:
        for result in METHODS[current.method].run(context, targets, missing):
            current = todo[result.target]
            book.add(_complete_piece(run, context, current, result))
            missing.discard(result.target)
    except (BudgetError, ModelError) as error:
        for target in targets:
            if target in missing:
                book.add(_failed_line(todo[target], str(error)))


def _failed_line(piece: Piece, reason: str) -> Line:
    """The journal line of a piece that cannot be done."""
    return {**_piece_fields(piece), "error": reason}


def _piece_fields(piece: Piece) -> Line:
    """The fields of a journal line that identify its piece."""
    return {
        "piece": piece.number,
        "seed": piece.seed,
        "method": piece.method,
        "target": piece.target.label,
        "share": piece.target.value,
    }


def _complete_piece(
    run: ComparisonRun, context: MethodContext, piece: Piece, result: MethodResult
) -> Line:
    """Prune and fine-tune the network, score it before and after, and return the journal line."""
    context.report("pruning")
    settings = context.prune_settings(result.target)
    kept = plans(result.analysis, result.ranking, settings)
    [pruned] = apply_plans(result.analysis, result.ranking, settings, kept)
    notes = with_command(pruned.network.notes, run.command)
    network = replace(pruned.network, notes=notes)
    network.model.cpu()
    file = f"{piece.method}-{piece.target.label}-seed{piece.seed}.safetensors"
    per_target = METHODS[piece.method].per_target
    with staged() as files:
        write_network(network, files.file(run.folder / "pruned" / file))
        if result.ranking.method == piece.method and "legr" in result.ranking.notes:
            path = context.ranking_file(piece.method, result.target if per_target else None)
            write_ranking(result.ranking, files.file(path))
    repair = dict[str, float]()
    if run.settings.repair:
        cut = first_figure(score_of(run, network, context.data, "test"))[1]
        started = time.perf_counter()
        network = _repaired(run, context, network)
        repair = {"cut": cut, "repair_seconds": round(time.perf_counter() - started, 1)}
    before = score_of(run, network, context.data, "test")
    training = _finetune(run, context, network, run.folder / "tuned" / file)
    after = training.test or training.validation
    assert after is not None  # a comparison always holds out validation images
    name, tuned_value = first_figure(after.line())
    return {
        **_piece_fields(piece),
        "file": f"tuned/{file}",
        "flops": pruned.flops,
        "dense_flops": run.analysis.flops,
        "params": pruned.params,
        **repair,
        "before": first_figure(before)[1],
        ACCURACY if name == ACCURACY else "score": tuned_value,
        "images": after.images,
        "pruning": result.effort.line(),
        "tuning": _tuning_effort(context, training).line(),
    }


def score_of(run: ComparisonRun, network: Network, data: Data, split: str) -> Line:
    """Score a network on the test images if requested and available, else on validation images."""
    part = data.test if split == "test" and data.test is not None else data.validation
    target, task = choose(run.device), run.task
    reference = reference_for(run.analysis, data, run.device, task)
    batches = with_targets(task, in_order(part, Serving(data.feed, 250, target)), reference)
    scored = evaluate(network.model.to(target), batches, task)
    network.model.cpu()
    return scored.line()


def _repaired(run: ComparisonRun, context: MethodContext, network: Network) -> Network:
    """Repair a network with training images; the cut one where that brings it no closer."""
    settings = Repair(
        images=run.settings.repair, seed=context.seed, outputs="values" if run.task.values else None
    )
    context.report("repairing")

    def pictures(opened: Network) -> RepairImages:
        return training_pictures(opened, context.data, settings)

    return repair_network(network, run.analysis.network, pictures, settings).network


def _finetune(
    run: ComparisonRun, context: MethodContext, network: Network, out: Path
) -> FinetuneResult:
    """Fine-tune a network with the settings that all methods share."""
    training = replace(run.settings.training, seed=context.seed)
    group = ProcessGroup(choose(run.device))
    taught = run.settings.teacher or run.task.needs_reference
    teacher = run.analysis.network.copied() if taught else None
    setup = training_setup(network, context.data, training, group, teacher, run.task)
    files = RunFiles(out, resume=True, force=False, kind=replace(EPOCHS, anew=DAMAGED_ADVICE))

    def report(event: Event) -> None:
        if isinstance(event, Progress) and event.milestone:
            context.report(f"fine-tuning, {event}")

    context.report("fine-tuning")
    result = train_setup(setup, files, progress=report)
    assert result is not None  # a single process is its own leader
    return result


def _tuning_effort(context: MethodContext, training: FinetuneResult) -> Effort:
    """The effort of a fine-tuning run."""
    size = training.settings["batch_size"]
    steps = training.epochs * max(1, len(context.data.train) // size)
    evaluated = training.epochs * len(context.data.validation)
    return Effort(training.seconds, steps, steps * size + evaluated)


def comparison(run: ComparisonRun, data: Data, header: Line, book: Journal) -> Line:
    """The contents of compare.json: the header and all recorded pieces."""
    name, split = headline(header["dense"]), "validation" if data.test is None else "test"
    return {
        "format": FORMAT,
        "version": VERSION,
        "legr": __version__,
        **header,
        **({} if name == ACCURACY else {"score": name, "split": split}),
        "dense_flops": run.analysis.flops,
        "command": run.command,
        "made_with": {"python": platform.python_version(), "torch": torch.__version__},
        "rows": [book.lines[number] for number in sorted(book.lines)],
    }
