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


def squares(seed: int, size: tuple[int, int] = (32, 24)) -> tuple[np.ndarray, np.ndarray]:
    """A noisy picture of a red square (class 1) and a green one (2), and its labels."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(60, size=(size[1], size[0], 3), dtype=np.uint8)
    labels = np.zeros((size[1], size[0]), np.uint8)
    for number in (1, 2):
        top, left = rng.integers(size[1] - 9), rng.integers(size[0] - 9)
        labels[top : top + 9, left : left + 9] = number
    picture[labels == 1, 0] = 220
    picture[labels == 2, 1] = 220
    return picture, labels


def pairs(root: Path, counts: dict[str, int], size: tuple[int, int] = (32, 24)) -> Path:
    """Splits of pictures and, in folders beside them, label pictures."""
    seed = 0
    for split, count in counts.items():
        for number in range(count):
            for folder, values in zip((split, f"{split}-labels"), squares(seed, size), strict=True):
                path = root / folder / f"{number:03}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values).save(path)
            seed += 1
    return root
