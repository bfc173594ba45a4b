"""Output of `legr learn`: accuracies before and after, or JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.targets import percents
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.search.learn import LearnResult


def show_learned(result: "LearnResult", out: Path, next_step: str, as_json: bool) -> None:
    """Print accuracies to stderr and the ranking's name to stdout, or everything as JSON."""
    if as_json:
        output.print_json(_as_json(result, out))
        return
    more = ("divergence",) if "divergence" in result.best else ()
    columns = ("network", "accuracy", "loss", *more)
    table = output.table("Accuracy on the validation images", *columns, left=("network",))
    shares = percents(result.settings.flops)
    for name, score in (
        ("dense", result.dense),
        (f"{shares} FLOPs, α = 1, κ = 0", result.identity),
        (f"{shares} FLOPs, learned", result.best),
    ):
        if score is not None:
            loss = "" if score["loss"] is None else f"{score['loss']:.4f}"
            row = (name, f"{score['accuracy']:.2%}", loss, _divergence(name, score))
            table.add_row(*row[: len(columns)])
    output.print_table(output.console(), table)
    output.print_notes(
        f"{result.settings.candidates} candidates in {result.seconds:.0f} s of compute; "
        f"{result.cached} of them keep the same channels as an earlier one and reuse its fitness",
        f"next: {next_step}",
    )
    output.print_result(str(out))


def _divergence(name: str, score: dict[str, Any]) -> str:
    """A score's divergence from the dense network."""
    divergence = 0.0 if name == "dense" else score.get("divergence")
    return "" if divergence is None else f"{divergence:.4f}"


def _as_json(result: "LearnResult", out: Path) -> dict[str, Any]:
    """The result as JSON data."""
    notes = result.ranking.notes
    facts = {key: notes[key] for key in ("dense", "identity", "best", "seconds", "settings")}
    files = {"ranking": str(out), "history": str(out.with_name(notes["history"]))}
    return {"legr": __version__, **files, "cached": result.cached, **facts}
