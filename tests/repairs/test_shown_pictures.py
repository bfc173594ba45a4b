"""Repair shows pictures to a network as its file records."""

from pathlib import Path

import numpy as np
import pytest
import torch
from nets import Residual
from PIL import Image

from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.repairs.pictures import RepairData, choose_pictures
from legr_cli.settings import Repair


@pytest.mark.parametrize(("resize", "black_rows"), [("squash", 0), ("pad", 8), ("crop", 0)])
def test_pictures_are_resized_as_recorded(tmp_path: Path, resize: str, black_rows: int) -> None:
    for number in range(4):
        columns = np.arange(40, 240, 5, dtype=np.uint8)  # 40 wide, brighter to the right
        pixels = np.broadcast_to(columns[None, :, None], (20, 40, 3))
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / f"{number}.png")
    notes = {
        "pictures": {"resize": resize},
        "statistics": {"mean": [0.0] * 3, "std": [1.0] * 3},
    }
    network = Network(Residual(), Arch("residual"), (3, 16, 16), None, notes)
    given = RepairData(data=f"images:{tmp_path}", settings=Repair(images=4))
    [image, *_] = torch.cat(choose_pictures(network, given).fit)
    assert int((image.amax((0, 2)) < 1e-6).sum()) == black_rows
    darkest = float(image[0, 8, 0]) * 255
    assert darkest == pytest.approx({"crop": 92, "squash": 43, "pad": 43}[resize], abs=4)
