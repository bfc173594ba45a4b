"""FLOPs that fvcore leaves out, against products written out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from legr_cli.cost import count_flops

INPUT = (8, 3, 4)  # 12 steps of 8 numbers


class Around(nn.Module):
    """A layer that reads an image as a sequence of its pixels."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x.flatten(2).transpose(1, 2))


def first(layer: Any, x: Tensor) -> Tensor:
    return layer(x)[0]


def packed(layer: Any, x: Tensor) -> Tensor:
    lengths = torch.tensor([x.shape[1]])
    return layer(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1]


def last_step(layer: Any, x: Tensor) -> Tensor:
    state = layer(x[:, -1])
    return state[0] if isinstance(state, tuple) else state


def attend(layer: Any, x: Tensor) -> Tensor:
    return layer(x, x, x)[0]


@pytest.mark.parametrize(
    ("layer", "call", "expected"),
    [
        (
            nn.GRU(8, 11, 2, bidirectional=True, batch_first=True),
            first,
            12 * 2 * (33 * 8 + 33 * 11 + 33 * 22 + 33 * 11),
        ),
        (nn.LSTM(8, 11, proj_size=5, batch_first=True), first, 12 * (44 * 8 + 44 * 5 + 5 * 11)),
        (nn.RNN(8, 11, batch_first=True), first, 12 * (11 * 8 + 11 * 11)),
        (nn.RNN(8, 11, nonlinearity="relu"), first, 12 * (11 * 8 + 11 * 11)),
        (nn.GRU(8, 11, batch_first=True), packed, 12 * (33 * 8 + 33 * 11)),
        (nn.GRUCell(8, 11), last_step, 33 * 8 + 33 * 11),
        (nn.LSTMCell(8, 11), last_step, 44 * 8 + 44 * 11),
        (nn.MultiheadAttention(8, 2, batch_first=True), attend, 12 * 4 * 8 * 8 + 2 * 12 * 12 * 8),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            lambda layer, x: layer(x),
            12 * 4 * 8 * 8 + 2 * 12 * 12 * 8 + 2 * 12 * 8 * 16 + 2 * 5 * 12 * 8,  # two norms
        ),
    ],
)
def test_recurrent_layers_and_attention(
    layer: nn.Module, call: Callable[[Any, Tensor], Tensor], expected: int
) -> None:
    assert count_flops(Around(layer, call), INPUT) == expected
