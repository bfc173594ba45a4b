"""Output of `legr evaluate`: a table of scores, or JSON."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.files import staged
from legr_cli.training.evaluate import SCORES
from legr_cli.training.scores import format_figure
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.training.evaluate import Evaluation

    Scores = list[tuple[str, Evaluation]]  # by file


_ABOUT_ALL = ("notes", "split")  # told once, not in every row


def show_scores(
    scores: "Scores",
    data: str,
    recalibrated: bool,
    as_json: bool,
    out: Path | None = None,
) -> None:
    """Print the scores to stdout, as a table or JSON, and write them; notes go to stderr."""
    notes = list(dict.fromkeys(note for _, score in scores for note in score.notes))
    if recalibrated:
        notes.append("BatchNorm statistics were re-estimated, for dense networks as well")
    about = {"legr": __version__, "data": data, "split": scores[0][1].split, "notes": notes}
    found = {**about, "scores": [_as_json(*score) for score in scores]}
    if out is not None:
        with staged() as files:
            kind = {"format": SCORES, "version": 1, "recalibrated": recalibrated}
            files.file(out).write_text(json.dumps({**kind, **found}) + "\n", encoding="utf-8")
    if as_json:
        output.print_json(found)
        return
    output.print_table(output.console(stderr=False), _table(scores, data))
    output.print_notes(*notes)
    if out is not None:
        output.print_result(out)


def _as_json(file: str, score: "Evaluation") -> dict[str, Any]:
    """A row as JSON data; of classification, accuracy and top-5 accuracy are named."""
    row = dataclasses.asdict(score)
    figures = {"score": row.pop("score"), "figures": row.pop("figures")}
    if score.accuracy is not None:
        figures = {"accuracy": score.accuracy, "top5": score.top5}
    return {"file": file, **figures, **{k: v for k, v in row.items() if k not in _ABOUT_ALL}}


def _table(scores: "Scores", data: str) -> Any:
    """One row per network; top-5 accuracy only where it means something."""
    first = scores[0][1]
    few = any(score.classes <= 5 for _, score in scores)
    names = [name for name in first.figures if not (name == "top 5" and few)]
    columns = ("network", *names, "loss", "FLOPs", "of dense")
    title = f"{first.images} {first.split} images of {data}"
    table = output.table(title, *columns, left=columns[:1])
    for file, score in scores:
        table.add_row(
            file,
            *(format_figure(name, score.figures[name]) for name in names),
            "" if score.loss is None else f"{score.loss:.4f}",
            output.format_count(score.flops),
            f"{score.flops_share:.1%}",
        )
    return table
