"""The dense network as the reference of a search: what does not depend on the candidate."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from legr_cli.channels import Units
from legr_cli.channels.inputs import submodule
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating, fixed_seed
from legr_cli.channels.units import Kept
from legr_cli.errors import ModelError
from legr_cli.progress import silent
from legr_cli.repairs.layers import repair_layers
from legr_cli.repairs.lockstep import DenseValues
from legr_cli.repairs.repair import reaching
from legr_cli.settings import Repair
from legr_cli.training.loop import forward
from legr_cli.training.tasks import in_single_precision

ROWS = 3000  # at most so many for each layer
MEMORY = 1 << 28  # bytes of the dense network's outputs that are kept


class Reference:
    """The dense network's values on the pictures that candidates are repaired with."""

    def __init__(self, units: Units, batches: Iterable[Tensor], seed: int) -> None:
        self.units, self.seed = units, seed
        with evaluating(units.source.model):
            self.batches = [reaching(units, images.contiguous()) for images in batches]
            self.values = DenseValues(units, self.batches)

    def repair(self, model: nn.Module, kept: Kept) -> None:
        """Repair a candidate in place; raise ModelError if no layer can be."""
        part = submodule(model, self.units.source.module)
        assert isinstance(part, fx.GraphModule)
        layers = repair_layers(
            self.units,
            kept,
            part,
            self.batches,
            ridge=Repair().ridge,
            seed=self.seed,
            progress=silent,
            refits=0,  # cheaper, and orders candidates alike
            rows=ROWS,
            known=self.values,
        )
        if all(layer.reason for layer in layers):
            raise ModelError(
                "--fitness repair: no layer of this network can be repaired ("
                f"'{layers[0].name}': {layers[0].reason}); use --fitness finetune or none"
            )


class DenseOutputs:
    """The dense network's outputs on the validation images, batch by batch.

    They are computed once, or anew for every candidate where they are too large to keep.
    """

    def __init__(self, model: nn.Module, images: int) -> None:
        self.model, self.images = model, images
        self._known: dict[int, Any] = {}

    @torch.no_grad()
    def of(self, images: Tensor) -> Any:
        """The outputs on these images."""
        with evaluating(self.model), fixed_seed():
            return in_single_precision(forward(self.model, images))

    def at(self, batch: int, images: Tensor) -> Any:
        """The outputs on this batch."""
        if batch in self._known:
            return self._known[batch]
        outputs = self.of(images)
        size = sum(t.nbytes for t in tensors(outputs)) / len(images) * self.images
        if size <= MEMORY:
            self._known[batch] = outputs
        return outputs
