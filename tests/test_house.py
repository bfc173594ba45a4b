"""The rules of the house (CONTRIBUTING.md): who may import whom, who prints, how long code is."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import legr_cli

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "legr_cli"
ROOMS = [
    *(
        "version",
        "errors",
        "arguments",
        "shapes",
        "targets",
        "settings",
        "files",
        "journal",
        "progress",
    ),
    *(
        "channels",
        "models",
        "flop_handles",
        "cost",
        "metrics",
        "latency",
        "ranking",
        "cut",
        "pruning",
    ),
    *("data", "repairs", "training", "search", "baselines", "deploy", "reports"),
    *("commands", "cli", "__main__"),
]
LONGEST, LONGEST_COMMAND = 60, 30  # lines of a body, without its docstring
EXCEPTED = {"legr_cli/__init__.py"}  # imports the public functions, lazily
SHOWING = ("legr_cli/cli.py", "legr_cli/commands/")  # may print
PRINTERS = {"typer", "click", "rich"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[str, ast.Module]:
    """Every file of the package, parsed, by its path from the root."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}


def room_of(path: str) -> str:
    """`channels` for legr_cli/channels/ops.py, `cost` for legr_cli/cost.py."""
    return path.split("/")[1].removesuffix(".py")


def imports(path: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """All imports of a file, in full, with their lines; also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def faults_of(path: str, tree: ast.Module) -> Iterator[str]:
    """Imports of a room that comes later, or of the public functions."""
    own = ROOMS.index(room_of(path))
    for name, line in imports(path, tree):
        package, _, rest = name.partition(".")
        if package != "legr_cli":
            continue
        wanted = rest.partition(".")[0]
        if wanted not in ROOMS:
            yield f"{path}:{line} imports {name}, which is no room"
        elif ROOMS.index(wanted) > own:
            yield f"{path}:{line} ({room_of(path)}) imports {wanted}, a later room"


def bodies() -> Iterator[tuple[str, Function, int]]:
    """Every function, and the lines of its body without the docstring."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                body = node.body[ast.get_docstring(node) is not None :]
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
                yield path, node, lines


def test_every_file_is_in_a_room() -> None:
    assert {room_of(path) for path in sources()} - {"__init__"} <= set(ROOMS)


def test_rooms_import_only_rooms_before_them() -> None:
    faults = [
        fault
        for path, tree in sources().items()
        if path not in EXCEPTED
        for fault in faults_of(path, tree)
    ]
    assert not faults


@pytest.mark.parametrize(
    "line",
    [
        "from legr_cli.deploy.export import export",
        "def late():\n    from legr_cli import pruning",
        "import legr_cli.commands",
        "from legr_cli import prune",
    ],
)
def test_an_import_of_a_later_room_is_found(line: str) -> None:
    assert len(list(faults_of("legr_cli/channels/units.py", ast.parse(line)))) == 1


def test_only_commands_print() -> None:
    faults = []
    for path, tree in sources().items():
        if path.startswith(SHOWING):
            continue
        used = {name.partition(".")[0] for name, _ in imports(path, tree)} & PRINTERS
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        prints = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
        faults += [f"{path}: {name}" for name in used | ({"print"} if prints else set())]
    assert not faults


def test_no_two_classes_have_one_name() -> None:
    named: dict[str, list[str]] = {}
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(path)
    assert not {name: paths for name, paths in named.items() if len(paths) > 1}


def test_no_function_is_long() -> None:
    long = [(path, node.name, lines) for path, node, lines in bodies() if lines > LONGEST]
    assert not long


def test_commands_parse_call_and_show() -> None:
    """The function behind each command is short: its work is done in a room before it."""
    from legr_cli.cli import COMMANDS

    of_commands = {(f"legr_cli/commands/{c.__name__}.py", c.__name__) for c in COMMANDS}
    found = {
        (path, node.name): lines
        for path, node, lines in bodies()
        if (path, node.name) in of_commands
    }
    assert set(found) == of_commands
    assert not {name: lines for name, lines in found.items() if lines > LONGEST_COMMAND}


def test_every_public_function_is_documented() -> None:
    page = (ROOT / "docs/python.md").read_text()
    for name in set(legr_cli.__all__) - {"LegrError", "__version__"}:
        function = getattr(legr_cli, name)
        text = inspect.getdoc(function) or ""
        returns = inspect.signature(function).return_annotation not in (None, "None")
        for part in ("Args:", *["Returns:"] * returns, "Raises:", "Example:"):
            assert part in text, (name, part)
        for parameter in inspect.signature(function).parameters:
            assert f"    {parameter}: " in text, (name, parameter)
        assert f"`{name}(" in page, name


def test_importing_legr_imports_no_torch() -> None:
    code = "import sys, legr_cli; dir(legr_cli); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="nothing"):
        _ = legr_cli.nothing


def table(heading: str) -> list[list[str]]:
    """Rows of the table below a heading of CONTRIBUTING.md, without its head."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_contributing_lists_the_rooms_in_order() -> None:
    named = [
        name.removesuffix(".py").removesuffix("/")
        for row in table("The house")
        for name in re.findall(r"`([^`]+)`", row[0])
    ]
    present = {room_of(path) for path in sources()}
    assert named == [room for room in ROOMS if room in present and room != "__main__"]


def test_contributing_names_files_and_tables_that_exist() -> None:
    rows = table("Where a change goes")
    assert len(rows) == 12
    for what, write, add in rows:
        files = re.findall(r"`(legr_cli/[a-z_/]+\.py)`", write + add)
        names = re.findall(r"`([A-Z]+|[a-z_]+)`(?!/)", add)
        assert names, what
        defined = {name for file in files for name in top_level(sources()[file])}
        assert set(names) <= defined, what


def top_level(tree: ast.Module) -> set[str]:
    """Names that a module defines."""
    names = {node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
