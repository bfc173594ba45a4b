"""The metric of every filter, measured before a search, or read from the journal to resume."""

from dataclasses import replace

import numpy as np
import torch

from legr_cli.channels.switches import evaluating
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data
from legr_cli.journal import Line
from legr_cli.metrics.filters import Filters, collect_filters
from legr_cli.pruning import Analysis
from legr_cli.ranking import Ranking, Row, check_ranking, filters_of
from legr_cli.repairs.repair import reaching
from legr_cli.settings import Search

IMAGES = 256  # that a metric of images is measured on
BATCH = 64  # images that are in memory at once


def with_metric(
    analysis: Analysis, data: Data, settings: Search, known: Line | None = None
) -> Analysis:
    """The analysis with the filters measured by the metric of a search.

    A metric of images takes unaugmented training images. `known` is the header of the journal to
    resume, which has its values already.
    """
    if settings.metric == analysis.filters.metric:
        return analysis
    filters = None if known is None else _stored(analysis, settings.metric, known)
    return replace(analysis, filters=filters or _measured(analysis, data, settings))


def _stored(analysis: Analysis, metric: str, header: Line) -> Filters | None:
    """The filters with the values in a journal's header; None if they are not of this network."""
    values = header.get("metric_values")
    if values is None or header.get("weights_sha256") != analysis.sha256:
        return None
    if header["settings"].get("metric") != metric:
        return None
    rows = (Row(name, len(numbers), values=tuple(numbers)) for name, numbers in values.items())
    ranking = Ranking(tuple(rows), metric=metric)
    check_ranking(ranking, replace(analysis.filters, metric=metric))
    return filters_of(ranking, analysis.filters, analysis.units)


def _measured(analysis: Analysis, data: Data, settings: Search) -> Filters:
    """The filters measured on images that the seed selects."""
    chosen = np.random.default_rng(settings.seed).permutation(len(data.train))[:IMAGES]
    batches = in_order(data.train.pick(chosen), Serving(data.feed, BATCH, torch.device("cpu")))
    with evaluating(analysis.units.source.model):
        reached = [reaching(analysis.units, images.contiguous()) for images, _ in batches]
        return collect_filters(analysis.units, settings.metric, analysis.cost, reached)
