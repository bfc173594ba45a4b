"""File names of exported networks."""

import re
from collections.abc import Sequence


def file_names(names: Sequence[str]) -> list[str]:
    """Return a unique, shell-safe file name for each network, such as `resnet20.onnx`."""
    files: list[str] = []
    for name in names:
        stem = re.sub(r"\.(onnx|safetensors|pt|pth|th|t7|tar)$", "", name)
        stem = re.sub(r"[^A-Za-z0-9_.=]+", "-", stem).strip("-.") or "network"
        # names that differ only in what was replaced are numbered: x.onnx, x-2.onnx, …
        taken = re.compile(rf"{re.escape(stem)}(-\d+)?\.onnx")
        same = sum(bool(taken.fullmatch(other)) for other in files)
        files.append(f"{stem}-{same + 1}.onnx" if same else f"{stem}.onnx")
    return files
