"""File names of exported networks."""

import re
from collections.abc import Sequence


def file_names(names: Sequence[str]) -> list[str]:
    """`resnet20.onnx` for `resnet20.safetensors`: unique, and safe in a shell."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"\.(onnx|safetensors|pt|pth|th|t7|tar)$", "", name)
        stem = re.sub(r"[^A-Za-z0-9_.=]+", "-", stem).strip("-.") or "network"
        same = sum(bool(re.fullmatch(rf"{re.escape(stem)}(-\d+)?\.onnx", other)) for other in found)
        found.append(f"{stem}-{same + 1}.onnx" if same else f"{stem}.onnx")
    return found
