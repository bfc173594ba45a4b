"""Shapes of a network's inputs: of one image, or of several inputs by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from legr_cli.errors import SettingError

# The shape of one image, without the batch; or, for several inputs, the shape of each by name.
Shapes = tuple[int, ...] | Mapping[str, tuple[int, ...]]

_LARGEST_SIDE, _MOST_SIDES = 99_999, 6


def parse_input(texts: Sequence[str] | str | None) -> Shapes | None:
    """Parse `3x224x224`, or `image=3x96x96` and `state=4` for several inputs; None stays None."""
    if not texts:
        return None
    texts = [texts] if isinstance(texts, str) else texts
    if len(texts) == 1 and "=" not in texts[0]:
        return _parse_shape(texts[0], texts[0])
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, shape = text.partition("=")
        if not equals or not name.isidentifier():
            raise SettingError(
                f"--input {text}: with several inputs, name each, such as --input image=3x96x96 "
                "--input state=4"
            )
        if name in shapes:
            raise SettingError(f"--input {text}: {name} is given twice")
        shapes[name] = _parse_shape(shape, text)
    return shapes


def _parse_shape(text: str, shown: str) -> tuple[int, ...]:
    """Parse one shape."""
    if not re.fullmatch(
        rf"\d{{1,5}}(x\d{{1,5}}){{0,{_MOST_SIDES - 1}}}", text
    ) or "0" in text.split("x"):
        raise SettingError(
            f"--input {shown}: expected channels, height and width, such as 3x224x224"
        )
    return tuple(int(side) for side in text.split("x"))


def check_shapes(shapes: Any) -> Shapes:
    """Check shapes from Python: `(3, 224, 224)` or `{"image": (3, 96, 96), "state": (4,)}`."""
    if isinstance(shapes, Mapping):
        if not shapes or not all(isinstance(name, str) for name in shapes):
            raise SettingError(f"input_shape must have a shape for each input, got {shapes}")
        return {name: _check_shape(shape) for name, shape in shapes.items()}
    return _check_shape(shapes)


def _check_shape(shape: Any) -> tuple[int, ...]:
    """Check one shape."""
    try:
        sides = tuple(shape)
    except TypeError:
        sides = ()
    if not 1 <= len(sides) <= _MOST_SIDES or not all(
        type(side) is int and 0 < side <= _LARGEST_SIDE for side in sides
    ):
        raise SettingError(f"input_shape must be sizes such as (3, 224, 224), got {shape}")
    return sides


def shapes_text(shapes: Shapes) -> str:
    """`3x224x224`, or `image=3x96x96, state=4`."""
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name}={shapes_text(shape)}" for name, shape in shapes.items())
    return "x".join(map(str, shapes))


def shapes_json(shapes: Shapes) -> Any:
    """Shapes as JSON holds them."""
    if isinstance(shapes, Mapping):
        return {name: list(shape) for name, shape in shapes.items()}
    return list(shapes)


def image_shape(shapes: Shapes) -> tuple[int, ...]:
    """The shape of the only input, for what works on images alone."""
    if isinstance(shapes, Mapping):
        raise SettingError(
            f"this network takes several inputs ({shapes_text(shapes)}), and images fill only one"
        )
    return shapes
