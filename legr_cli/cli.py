"""The `legr` command. Nothing heavy is imported before a command runs."""

import inspect as inspection
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from legr_cli import __version__
from legr_cli.commands.bench import bench
from legr_cli.commands.compare import compare
from legr_cli.commands.demo import demo
from legr_cli.commands.evaluate import evaluate
from legr_cli.commands.finetune import finetune
from legr_cli.commands.inspect import inspect
from legr_cli.commands.invocation import WORDS
from legr_cli.commands.learn import learn
from legr_cli.commands.prune import prune
from legr_cli.commands.report import report
from legr_cli.errors import LegrError

PACKAGES = (
    "torch",
    "torchvision",
    "fvcore",
    "onnx",
    "onnxruntime",
    "matplotlib",
    "safetensors",
    "PIL",
)


class _Edge(TyperGroup):
    """The one place where errors become a line and an exit code."""

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **extra: Any) -> Any:
        WORDS.set(tuple(args))
        return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LegrError as error:
            typer.echo(f"legr: {error}", err=True)
            raise typer.Exit(1) from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"legr: {where}{error.strerror or error}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in PACKAGES:
                raise
            typer.echo(f"legr: this needs {error.name}, which is not installed here", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            typer.echo(f"legr: {str(stop) or 'stopped'}", err=True)
            raise typer.Exit(130) from None


def unwrapped(command: Callable[..., Any]) -> str:
    """A docstring whose paragraphs are one line each: the terminal wraps them, not we."""
    return re.sub(r"(?<!\n)\n *(?=\S)", " ", inspection.cleandoc(command.__doc__ or ""))


app = typer.Typer(
    cls=_Edge,
    name="legr",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, learn, prune, finetune, evaluate, bench, compare, report, inspect):
    app.command(help=unwrapped(command))(command)


def _version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"legr {__version__}")
        raise typer.Exit


@app.callback()
def legr(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Small, fast ConvNets for every FLOP target, from one learned ranking.

    [bold]legr demo[/] shows all of it. [bold]legr learn[/] finds out once which filters matter;
    [bold]legr prune[/] then writes real, smaller networks for any target, offline and in seconds.
    [bold]legr finetune[/] trains them, [bold]legr evaluate[/] measures their accuracy,
    [bold]legr bench[/] their latency, here or on a board, [bold]legr compare[/] sets LeGR beside
    the prior art, [bold]legr report[/] puts everything on a page, and [bold]legr inspect[/] shows
    what can be pruned and what cannot.

    Results go to stdout, progress and notes to stderr. Exit codes: 0; 1 for an error, in one line
    that says what to do; 2 for unknown commands and options; 130 for Ctrl-C.
    """


def main() -> None:
    """The console script: the app, without the warnings of the libraries that it calls."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unfinished files are taken away
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: nobody listens
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without α shows a question mark
    app(prog_name="legr")
