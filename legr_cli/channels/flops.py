"""FLOPs of norms, pooling and resizing as fvcore counts them in evaluation mode.

fvcore counts one fused multiply-add as one FLOP. Other ops of these kinds count as zero.
"""

import math
from collections.abc import Sequence
from typing import Any

Sizes = Sequence[int]


def batch_norm_flops(module: Any) -> int:
    """FLOPs per element: 1 to normalize with running statistics, and 1 for scale and shift."""
    if module.running_mean is None:
        return normalization_flops(module)
    return 2 if module.affine else 1


def normalization_flops(module: Any) -> int:
    """FLOPs per element: 4 to normalize with the input's own statistics, 1 for scale and shift."""
    return 5 if module.affine else 4


def adaptive_pool_flops(module: Any, kwargs: Any, in_shape: Sizes, out_shape: Sizes) -> int:
    """FLOPs per channel of one image: one per input position."""
    return math.prod(in_shape[2:])


def grid_sample_flops(module: Any, kwargs: Any, in_shape: Sizes, out_shape: Sizes) -> int:
    """FLOPs per channel of one image: 4 per output position, as if it were always bilinear."""
    return 4 * math.prod(out_shape[2:])


def resize_flops(module: Any, kwargs: Any, in_shape: Sizes, out_shape: Sizes) -> int:
    """FLOPs per channel of one image: per output position 1 (nearest) or 4 (bilinear), 2-D only."""
    if len(out_shape) != 4:
        return 0
    mode = module.mode if module else kwargs.get("mode", "nearest")
    if mode == "area":  # implemented as adaptive average pooling
        return adaptive_pool_flops(module, kwargs, in_shape, out_shape)
    return {"nearest": 1, "bilinear": 4}.get(mode, 0) * math.prod(out_shape[2:])
