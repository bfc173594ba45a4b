"""Read a bench.json. It may come from anywhere, so every value that legr shows is checked."""

import json
import math
import re
from pathlib import Path
from typing import Any

from legr_cli.deploy import core
from legr_cli.deploy.board import Facts
from legr_cli.errors import BenchError, first_line

_LARGEST = 1e15  # of any number in a measurement


def read_bench(path: Path) -> Facts:
    """Read and check a bench.json."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BenchError(f"{path} is not readable JSON: {first_line(error)}") from error
    return check_bench(path, data)


def check_bench(path: Path, raw: Any) -> Facts:
    """Return the content of a bench.json, without control characters; raise if it is damaged."""
    try:
        data = _sanitized(raw)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(data, dict) or data.get("format") != core.FORMAT:
        raise BenchError(f'{path} is not a measurement: it has no "format": "{core.FORMAT}"')
    if data.get("version") != core.VERSION:
        raise BenchError(
            f"{path} is a measurement of version {data.get('version')!r}; this legr reads "
            f"{core.VERSION}"
        )
    problem = _problem(data)
    if problem is not None:
        raise BenchError(f"{path} is damaged: {problem}; measure again")
    return data


def _problem(data: Facts) -> str | None:
    """Say which part of a measurement is missing or malformed, if any."""
    rows, device = data.get("models"), data.get("device")
    if not isinstance(rows, list) or not rows or not all(map(_is_row, rows)):
        return '"models" has a missing or invalid value'
    names = [row["name"] for row in rows]
    if len(set(names)) < len(names):
        return "two models have the same name"
    if data.get("against") not in names:
        return '"against" names none of its models'
    if not isinstance(device, dict) or not _is_device(device):
        return '"device" has a missing or invalid value'
    if not isinstance(data.get("notes"), list) or not isinstance(data.get("settings"), dict):
        return '"notes" or "settings" is missing'
    return None


def _sanitized(value: Any) -> Any:
    """Replace control characters; raise ValueError for numbers that no measurement can have."""
    if isinstance(value, str):
        return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", value)
    if isinstance(value, dict):
        return {_sanitized(key): _sanitized(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_sanitized(inside) for inside in value]
    if isinstance(value, int | float) and not abs(value) < _LARGEST:
        raise ValueError(f"{str(value)[:20]} is out of range for a measurement")
    return value


def _is_row(row: Any) -> bool:
    """Whether a model's row has every value that is shown, with the right type."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    times = [row.get(key) for key in ("median_ms", "p5_ms", "p95_ms", "spread", "ratio")]
    flops, span, difference = (row.get(key) for key in ("flops", "ratio_range", "difference"))
    return (
        all(map(_is_number, times))
        and (flops is None or (type(flops) is int and flops > 0))
        and (difference is None or _is_number(difference))
        and isinstance(span, list)
        and len(span) == 2
        and all(map(_is_number, span))
        and isinstance(row.get("file", ""), str)
    )


def _is_device(device: Facts) -> bool:
    """Whether everything that is shown of a machine has the right type."""
    texts = [device.get(key) for key in ("host", "board", "cpu", "machine", "runtime", "governor")]
    temperatures, pinned = device.get("temperature_c"), device.get("pinned", [])
    return (
        all(isinstance(text, str | None) for text in texts)
        and isinstance(pinned, list)
        and (temperatures is None or (isinstance(temperatures, list) and len(temperatures) == 2))
        and all(number is None or isinstance(number, int | float) for number in temperatures or [])
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number, 0 or more."""
    return isinstance(value, int | float) and 0 <= value < math.inf
