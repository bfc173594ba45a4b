"""Commands as users run them: in this process, or in one of their own."""

import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from legr_cli.cli import app

ROOT = Path(__file__).resolve().parents[1]
runner = CliRunner()


def legr(*args: object) -> str:
    """Run a command that must succeed; what it prints on stdout."""
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*args: object) -> str:
    """Run a command that must fail with one line; that line."""
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 1, (result.output, result.exception)
    return result.stderr.strip().splitlines()[-1]


def spawn(*args: object, **kwargs: object) -> subprocess.Popen:
    """A command in a process of its own."""
    command = [sys.executable, "-m", *(str(arg) for arg in args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def await_lines(path: Path, count: int) -> None:
    """Wait until a journal has so many lines."""
    end = time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.02)
