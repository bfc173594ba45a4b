"""The table of importance metrics, which α scales and κ shifts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from legr_cli.channels.units import Units
from legr_cli.cost import Cost
from legr_cli.metrics import norms
from legr_cli.metrics.reconstruction import reconstruction
from legr_cli.metrics.taylor import taylor

ByLayer = dict[str, Tensor]  # one number for each filter of each layer; higher is more important


@dataclass(frozen=True)
class Metric:
    """An importance metric."""

    what: str  # it measures
    of_weights: Callable[[Units], ByLayer] | None = None
    # of the network's values on some images, in batches; rankings then carry the numbers, so that
    # pruning by them needs no data
    of_images: Callable[[Units, Cost, Sequence[Tensor]], ByLayer] | None = None

    @property
    def is_logarithm(self) -> bool:
        """Whether κ scales importance and α is a power: metrics of images are logarithms."""
        return self.of_images is not None


METRICS = {
    "squared-norm": Metric("squared norm of a filter's weights", norms.squared_norm),
    "folded-norm": Metric(
        "squared norm of a filter's weights after folding the BatchNorm behind it",
        norms.folded_norm,
    ),
    "taylor": Metric("first-order change of the outputs without the filter", None, taylor),
    "reconstruction": Metric(
        "what the layers behind a filter cannot reconstruct from the others", None, reconstruction
    ),
}
DEFAULT_METRIC = "squared-norm"  # the paper's; also for ranking files without a metric
