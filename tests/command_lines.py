"""The calls of legr in a page of documentation, and whether legr would take them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command

from legr_cli.cli import app

BEFORE = {"do", "then", "else", "time"}  # words of the shell that a command may follow


def lines(page: Path) -> list[str]:
    """The lines of all shell blocks, those that go on in the next one joined."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each simple command in a line, without a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|"):
            yield words
            words = []
        else:
            words.append(word)


def arguments(words: list[str]) -> list[str] | None:
    """What a simple command hands to legr, if it calls it, itself or by Python or torchrun."""
    while words and (words[0] in BEFORE or re.match(r"\w+=", words[0])):
        words = words[1:]
    if words and Path(words[0]).name == "legr":
        return words[1:]
    if "legr_cli" in words and words[words.index("legr_cli") - 1] == "-m":
        return words[words.index("legr_cli") + 1 :]
    return None


def calls(page: Path) -> list[list[str]]:
    """The arguments of every call of legr on a page."""
    found = (arguments(words) for line in lines(page) for words in simple_commands(line))
    return [args for args in found if args is not None]


def complaint(args: list[str]) -> str | None:
    """What legr would say of these arguments before it does anything; `…` leaves some out."""
    group = get_command(app)
    if args[0].startswith("-"):
        options = {name for param in group.params for name in param.opts} | {"--help", "-h"}
        return None if args[0] in options else f"no option {args[0]}"
    if args[0] not in group.commands:
        return f"no command {args[0]}"
    try:
        given = [arg for arg in args[1:] if arg != "…"]
        group.commands[args[0]].make_context(f"legr {args[0]}", given)
    except Exception as error:  # Typer's own, by name: their home differs between its versions
        kind = type(error).__name__
        if kind == "Exit" or (kind == "MissingParameter" and "…" in args):
            return None
        return f"{kind}: {error}"
    return None
