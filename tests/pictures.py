"""Pictures of noise in files and folders."""

from pathlib import Path

import numpy as np
from PIL import Image


def paint(path: Path, size: tuple[int, int] = (32, 32), seed: int = 0, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    values = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    Image.fromarray(values).save(path)


def folders(root: Path, per_class: int = 10, size: tuple[int, int] = (32, 32)) -> Path:
    """Three classes in train/, two images of each in test/."""
    for label, name in enumerate(("cat", "dog", "eel")):
        for i in range(per_class):
            paint(root / "train" / name / f"{i:03}.png", size, 100 * label + i)
        for i in range(2):
            paint(root / "test" / name / f"{i:03}.png", size, 1000 + 100 * label + i)
    return root
