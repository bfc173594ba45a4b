"""The filters that can be removed, and the importance metric of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from legr_cli.channels.units import Units
from legr_cli.cost import Cost
from legr_cli.errors import CheckpointError, SettingError
from legr_cli.metrics.table import DEFAULT_METRIC, METRICS


@dataclass(frozen=True)
class Filters:
    """The filters that can be removed: layer, unit and importance metric of each."""

    names: tuple[str, ...]
    layer: np.ndarray
    unit: np.ndarray
    value: np.ndarray  # of the importance metric
    units: int
    metric: str = DEFAULT_METRIC


def collect_filters(
    units: Units,
    metric: str = DEFAULT_METRIC,
    cost: Cost | None = None,
    batches: Sequence[Tensor] = (),
) -> Filters:
    """Compute the importance metric of every filter that belongs to a unit.

    Metrics of images need the cost of plans, and batches of images as the network takes them.
    """
    entry = METRICS[metric]
    if entry.of_weights is not None:
        measured = entry.of_weights(units)
    else:
        assert entry.of_images is not None
        assert cost is not None
        measured = entry.of_images(units, cost, batches)
    names: list[str] = []
    layer, unit, value = [], [], []
    for module in units.flow.layers.values():
        unit_of = units.unit_of(module.out)
        removable = unit_of >= 0
        if not removable.any():
            continue
        values = measured[module.name].cpu().numpy()
        if not np.isfinite(values).all():
            what = "weights: use another checkpoint"
            if entry.of_images is not None:
                what = "outputs on these images: are they normalized as in training?"
            raise CheckpointError(f"layer '{module.name}' has NaN or infinite {what}")
        layer.append(np.full(int(removable.sum()), len(names)))
        names.append(module.name)
        unit.append(unit_of[removable])
        value.append(values[removable])
    return Filters(
        tuple(names),
        np.concatenate(layer),
        np.concatenate(unit),
        np.concatenate(value),
        units.count,
        metric,
    )


def spread(filters: Filters) -> np.ndarray:
    """Standard deviation of the importance metric in each layer."""
    return np.array([filters.value[filters.layer == i].std() for i in range(len(filters.names))])


def centers(filters: Filters) -> np.ndarray:
    """Mean of the importance metric in each layer."""
    return np.array([filters.value[filters.layer == i].mean() for i in range(len(filters.names))])


def check_metric(name: str) -> str:
    """Raise SettingError unless there is such a metric."""
    if name not in METRICS:
        raise SettingError(f"--metric {name}: expected {', '.join(METRICS)}")
    return name
