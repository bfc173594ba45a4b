"""Match the classes of a dataset with those of a network, by name."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from legr_cli.data.dataset import Data, Part
from legr_cli.errors import DataError

_WORDNET = re.compile(r"n\d{8}")  # the class folders of ImageNet


def in_network_order(data: Data, names: Sequence[str], missing_ok: bool = False) -> Data:
    """The data with labels numbered as the network numbers its classes.

    `names` are those of the network's outputs. With `missing_ok`, the data may lack some of them.

    Raises:
        DataError: The data has a class that the network does not know, or lacks one.
    """
    if not comparable(data.classes, names) or data.classes == tuple(names):
        return data
    unknown = [name for name in data.classes if name not in names]
    missing = [name for name in names if name not in data.classes]
    if unknown or (missing and not missing_ok):
        raise DataError(_mismatch(data.spec, unknown, missing))
    number = np.array([names.index(name) for name in data.classes], np.int64)

    def renumbered(part: Part) -> Part:
        return replace(part, labels=number[part.labels])

    remarks = []
    if (np.diff(number) < 0).any():
        remarks.append(
            "the network numbers these classes in another order: labels are matched by name"
        )
    if missing:
        remarks.append(f"the data has {len(data.classes)} of the network's {len(names)} classes")
    return replace(
        data,
        classes=tuple(names),
        train=renumbered(data.train),
        validation=renumbered(data.validation),
        test=data.test and renumbered(data.test),
        remarks=(*data.remarks, *remarks),
    )


def comparable(classes: Sequence[str], names: Sequence[str]) -> bool:
    """Whether both name classes alike; torchvision has words for ImageNet's WordNet ids."""
    ids = [all(_WORDNET.fullmatch(name) for name in of) for of in (classes, names)]
    return ids[0] == ids[1]


def valid_names(note: Any, outputs: int) -> tuple[str, ...]:
    """Class names from a network's notes; none where they do not name its outputs one by one."""
    if not isinstance(note, list) or not all(isinstance(name, str) for name in note):
        return ()
    return tuple(note) if len(set(note)) == len(note) == outputs else ()


def _mismatch(spec: str, unknown: list[str], missing: list[str]) -> str:
    """Which classes do not match, and what to do."""
    parts = []
    if unknown:
        parts.append(f"has {_listed(unknown)}, which the network does not know")
    if missing:
        parts.append(f"lacks {_listed(missing)}, which the network expects")
    return (
        f"{spec} {', and '.join(parts)}: rename or complete the class folders, or pass "
        "--ignore-class-names to number them in sorted order (legr finetune --new-head trains for "
        "other classes)"
    )


def _listed(names: list[str], most: int = 3) -> str:
    """`class 'a'`, or `classes 'a', 'b', 'c' and 4 more`."""
    text = ", ".join(f"'{name}'" for name in names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'class' if len(names) == 1 else 'classes'} {text}{more}"
