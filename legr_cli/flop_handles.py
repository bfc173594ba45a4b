"""FLOPs of ops that fvcore counts as zero: recurrent layers, attention, "same" padding.

As in fvcore, one fused multiply-add is one FLOP, and additions and activations are not counted. A
handle gets the inputs and outputs of an op in a graph traced by `torch.jit`.
"""

import math
from collections.abc import Callable
from typing import Any


def _same_padding(inputs: list[Any], outputs: list[Any]) -> int:
    """A convolution with padding="same" or "valid"."""
    from fvcore.nn.jit_handles import conv_flop_count, get_shape

    return int(conv_flop_count(get_shape(inputs[0]), get_shape(inputs[1]), get_shape(outputs[0])))


def _recurrent(inputs: list[Any], _outputs: list[Any]) -> int:
    """GRU, LSTM and RNN: every weight matrix is applied once at every step of every sequence."""
    steps = math.prod(_shape(inputs[0])[:-1])
    weights = next(v for v in inputs[2:] if v.node().kind() == "prim::ListConstruct")
    shapes = [_shape(weight) for weight in weights.node().inputs()]
    return steps * sum(math.prod(shape) for shape in shapes if len(shape) == 2)


def _recurrent_cell(inputs: list[Any], _outputs: list[Any]) -> int:
    """Cells: the matrices of the input and of the state, applied once."""
    sequences = math.prod(_shape(inputs[0])[:-1])
    return sequences * sum(math.prod(_shape(weight)) for weight in inputs[2:4])


def _attention(inputs: list[Any], _outputs: list[Any]) -> int:
    """Products of queries and keys, and of the weights and values."""
    query, key, value = (_shape(x) for x in inputs[:3])
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _added_product(inputs: list[Any], _outputs: list[Any]) -> int:
    """A batch of matrix products that is added to something."""
    return math.prod(_shape(inputs[1])) * int(_shape(inputs[2])[-1])


def _shape(value: Any) -> list[int]:
    """Sizes of a tensor in a traced graph."""
    from fvcore.nn.jit_handles import get_shape

    return list(get_shape(value))


HANDLES: dict[str, Callable[[list[Any], list[Any]], int]] = {
    "aten::_convolution_mode": _same_padding,
    **{f"aten::{name}": _recurrent for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
    **{f"aten::{name}_cell": _recurrent_cell for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
    "aten::scaled_dot_product_attention": _attention,
    "aten::baddbmm": _added_product,
}
