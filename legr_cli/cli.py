"""The `legr` command. Heavy imports wait until a command runs."""

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
from typer.core import TyperCommand, TyperGroup

from legr_cli.commands.bench import bench
from legr_cli.commands.compare import compare
from legr_cli.commands.demo import demo
from legr_cli.commands.evaluate import evaluate
from legr_cli.commands.export import export
from legr_cli.commands.finetune import finetune
from legr_cli.commands.inspect import inspect
from legr_cli.commands.invocation import ARGUMENTS
from legr_cli.commands.learn import learn
from legr_cli.commands.options import show_and_exit
from legr_cli.commands.prune import prune
from legr_cli.commands.repair import repair
from legr_cli.commands.report import report
from legr_cli.errors import LegrError
from legr_cli.version import __version__

# What an incomplete installation may lack; any other missing module is a bug of ours.
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


class _Command(TyperCommand):
    """A command whose help shows types only where they say something."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    """All commands, and the one place where an error becomes a single line and an exit code."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **extra: Any) -> Any:
        ARGUMENTS.set(tuple(args))
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
            typer.echo(f"legr: this command needs {error.name}, which is not installed", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            typer.echo(f"legr: {str(stop) or 'interrupted'}", err=True)
            raise typer.Exit(130) from None


def _without_types(params: list[Any]) -> list[Any]:
    """The same parameters, without `<bool>` for flags and `<str>` beside an argument's name."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = lambda *_, **__: None
    return params


def help_text(command: Callable[..., Any]) -> str:
    """A command's docstring with each paragraph on one line, for the terminal to wrap."""
    return re.sub(r"(?<!\n)\n *(?=\S)", " ", inspection.cleandoc(command.__doc__ or ""))


app = typer.Typer(
    cls=_Group,
    name="legr",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (demo, learn, prune, repair, finetune, evaluate, export, bench, compare, report, inspect)
for command in COMMANDS:
    app.command(cls=_Command, help=help_text(command))(command)


def _print_version() -> None:
    """Print the version."""
    typer.echo(f"legr {__version__}")


def legr(
    version: Annotated[  # noqa: ARG001 (handled by its callback)
        bool,
        typer.Option(
            "--version",
            callback=show_and_exit(_print_version),
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Prune ConvNets to any FLOP, parameter or latency target with one learned global ranking.

    [bold]legr demo[/] runs the whole workflow on bundled data. [bold]legr learn[/] learns once
    which filters matter; [bold]legr prune[/] then writes smaller networks for any target, offline
    and in seconds. [bold]legr repair[/] makes them usable at once with a few images and no labels,
    [bold]legr finetune[/] trains them, [bold]legr evaluate[/] measures their
    accuracy, [bold]legr export[/] writes ONNX files, [bold]legr bench[/] measures latency on this
    machine or a remote board, [bold]legr compare[/] compares LeGR with other pruning methods,
    [bold]legr report[/] puts all results on one page, and [bold]legr inspect[/] shows which
    channels can be pruned.

    Results go to stdout; progress and notes go to stderr. Exit codes: 0 on success, 1 on an error
    (reported in one line), 2 on invalid usage, 130 when interrupted with Ctrl-C.
    """
    from legr_cli.commands.output import show_logged_notes

    show_logged_notes()


app.callback(help=help_text(legr))(legr)


def main() -> None:
    """Entry point of the console script; hides warnings from third-party libraries."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit, removing temporary files
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without α shows a question mark
    app(prog_name="legr")
