"""Output of `legr finetune`: scores before and after, or JSON; and the list of recipes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.training.finetune import FinetuneResult


def show_recipes() -> None:
    """Print a table of all recipes to stdout."""
    from legr_cli.training.recipes import RECIPES, settings_of

    title = "Recipes: SGD with Nesterov momentum 0.9, weight decay 5e-4 and batch size 128"
    columns = ("recipe", "epochs", "learning rate", "patience", "for")
    table = output.table(title, *columns, left=("recipe", "learning rate", "for"))
    for name, recipe in RECIPES.items():
        settings = settings_of(name)
        drops = "/".join(f"{drop:g}" for drop in settings.drops)
        rate = f"{settings.lr:g}, ÷{settings.drop_by:g} at {drops}"
        if settings.schedule == "one-cycle":
            rate = f"{settings.lr:g}, one-cycle"
        patience = str(settings.patience or "")
        table.add_row(name, str(settings.epochs), rate, patience, recipe.what_for)
    output.print_table(output.console(stderr=False), table)


def show_trained(result: "FinetuneResult", data: str, out: Path, as_json: bool) -> None:
    """Print scores to stderr and the file name to stdout, or everything as JSON."""
    if result.complete_before:
        output.print_notes("training is already complete")
    if as_json:
        output.print_json(_as_json(result, out))
        return
    from legr_cli.training.scores import capitalized, headline, shown

    name = headline(result.before.line())
    table = output.table(capitalized(name), "network", "validation", "test", left=("network",))
    table.add_row("before", shown(result.before.line()), "")
    after = f"after epoch {result.best_epoch} of {result.epochs}"
    if result.epochs and not result.best_epoch:
        after = "unchanged"
        output.print_notes(
            "no epoch came closer, so the weights were left as they were: try a lower --lr or more "
            "images"
        )
    scores = (result.validation, result.test)
    cells = ("" if score is None else shown(score.line()) for score in scores)
    table.add_row(after if result.epochs else "after recalibration", *cells)
    output.print_table(output.console(), table)
    held_out = result.validation
    if held_out is not None and held_out.value < result.before.value:
        note = f"validation {name} stayed below its value before training"
        output.print_notes(f"{note}: try a lower --lr or more --epochs")
    if result.test is None:
        output.print_notes(f"{data} has no test images")
    output.print_result(str(out))


def _as_json(result: "FinetuneResult", out: Path) -> dict[str, Any]:
    """The result as JSON data."""
    return {
        "legr": __version__,
        "file": str(out),
        "before": result.before.line(),
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "validation": result.validation and result.validation.line(),
        "test": result.test and result.test.line(),
        "seconds": result.seconds,
        "settings": result.settings,
    }
