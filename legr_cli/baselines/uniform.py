"""Uniform pruning: the same share of every group of units, the best of each by norm.

A unit's score is the share of its group that ranks no better, so one threshold cuts every group
alike, and the budget cut, alignment and nesting are those of any ranking.
"""

import numpy as np


def even(importance: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """From importance to scores in (0, 1]; the best unit of every group has 1."""
    order = np.lexsort((importance, group_of))  # by group, the least important first
    sizes = np.bincount(group_of)
    start = np.cumsum(sizes) - sizes
    place = np.empty(len(order))
    place[order] = np.arange(len(order)) - start[group_of[order]] + 1
    return place / sizes[group_of]
