"""Every kind of layer as a matrix product: rows × matrix + bias is what the layer gives."""

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legr_cli.channels.linear_calls import LinearCall, record

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv": (nn.Conv2d(5, 7, 3), (2, 5, 8, 9)),
    "stride, padding, dilation": (nn.Conv2d(5, 7, 3, (2, 1), (2, 1), (1, 2)), (2, 5, 8, 9)),
    "oblong kernel": (nn.Conv2d(5, 7, (1, 4), padding=(0, 2)), (2, 5, 8, 9)),
    "same": (nn.Conv2d(5, 7, 4, padding="same", dilation=3), (2, 5, 8, 9)),
    "valid": (nn.Conv2d(5, 7, 3, padding="valid"), (2, 5, 8, 9)),
    "circular": (nn.Conv2d(5, 7, 3, padding=1, padding_mode="circular"), (2, 5, 8, 9)),
    "pads inside": (nets.SamePadding(5, 7, 3), (2, 5, 8, 9)),
    "no bias": (nn.Conv2d(5, 7, 1, bias=False), (2, 5, 8, 9)),
    "grouped": (nn.Conv2d(6, 14, 3, groups=2), (2, 6, 8, 9)),
    "depthwise": (nn.Conv2d(5, 5, 3, 2, 1, groups=5), (2, 5, 8, 9)),
    "depthwise, two each": (nn.Conv2d(5, 10, 3, groups=5), (2, 5, 8, 9)),
    "one dimension": (nn.Conv1d(5, 7, 3, 2, 1), (2, 5, 9)),
    "three dimensions": (nn.Conv3d(5, 7, (1, 2, 3), padding=1), (2, 5, 4, 5, 6)),
    "transposed": (nn.ConvTranspose2d(5, 7, 3), (2, 5, 4, 6)),
    "transposed, all options": (
        nn.ConvTranspose2d(5, 7, (4, 3), (3, 2), (2, 1), (1, 0), dilation=(1, 2)),
        (2, 5, 4, 6),
    ),
    "transposed, cropped": (nn.ConvTranspose2d(5, 7, 2, padding=1), (2, 5, 4, 6)),
    "transposed, one dimension": (nn.ConvTranspose1d(5, 7, 4, 2, 1), (2, 5, 6)),
    "transposed, three dimensions": (nn.ConvTranspose3d(5, 7, 2, 2), (2, 5, 2, 3, 4)),
    "transposed, grouped": (
        nn.ConvTranspose2d(6, 14, (3, 2), 2, groups=2, output_padding=1),
        (2, 6, 4, 6),
    ),
    "transposed, depthwise": (nn.ConvTranspose2d(5, 10, 3, groups=5), (2, 5, 4, 6)),
    "linear": (nn.Linear(5, 7), (3, 5)),
    "linear, more dimensions": (nn.Linear(5, 7), (3, 4, 2, 5)),
}


def recorded(layer: nn.Module, shape: tuple[int, ...]) -> tuple[LinearCall, Tensor, nn.Module]:
    layer, x = layer.double(), torch.randn(shape, dtype=torch.double)
    with torch.no_grad():
        call = record(lambda: layer(x), layer.weight)
        assert isinstance(call, LinearCall)
        return call, layer(x), layer


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_rows_times_its_matrix(name: str) -> None:
    torch.manual_seed(0)
    call, output, layer = recorded(*LAYERS[name])
    rows = torch.arange(torch.Size(call.row_shape).numel())
    matrix = call.matrix(layer.weight)
    # (rows × groups × unknowns) · (groups × unknowns × channels)
    product = torch.einsum("rgu,guc->rgc", call.inputs_at(rows), matrix)
    bias = 0 if layer.bias is None else layer.bias.reshape(call.groups, -1)
    assert torch.allclose(product + bias, call.outputs_at(output, rows))
    assert torch.equal(call.weight(matrix, layer.weight), layer.weight)


def test_some_rows_are_those_rows() -> None:
    call, output, _ = recorded(*LAYERS["grouped"])
    rows = torch.tensor([3, 57, 20])
    everything = torch.arange(torch.Size(call.row_shape).numel())
    assert torch.equal(call.inputs_at(rows), call.inputs_at(everything)[rows])
    image, row, column = 57 // 42, 57 % 42 // 7, 57 % 7  # the output is 6 × 7
    assert torch.equal(call.outputs_at(output, rows)[1].flatten(), output[image, :, row, column])


def test_by_function() -> None:
    weight, x = torch.randn(6, 2, 3, 3), torch.randn(2, 6, 5, 5)
    call = record(lambda: F.conv2d(input=x, weight=weight, padding=1, groups=3), weight)
    assert isinstance(call, LinearCall)
    assert call.groups == 3
    assert call.inputs_at(torch.arange(50)).shape == (50, 3, 18)


def test_what_is_no_product_with_its_weight_is_said() -> None:
    odd, x = nets.Standardised(5, 7, 3), torch.randn(2, 5, 8, 8)
    assert "plain product" in str(record(lambda: odd(x), odd.weight))
    conv = nn.Conv2d(5, 7, 3)
    assert "plain product" in str(record(lambda: 2 * conv(x), conv.weight))
    assert "batch" in str(record(lambda: conv(x[0]), conv.weight))
