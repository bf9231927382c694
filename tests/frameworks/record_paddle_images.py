"""Writes small models with convolutions and what stands around them, with Paddle's own outputs.

    python -m tests.frameworks.record_paddle_images tests/data/paddle

In the format of the Paddle that runs it, as record_paddle_loops.py does.
"""

from __future__ import annotations

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from typing import Any

import numpy as np
import numpy.random  # noqa: F401
import paddle
import paddle.nn.functional as F
from paddle import nn
from tests.frameworks.record_paddle_loops import Made, numbers, record_all
from tests.frameworks.recording import registry

MODELS, model = registry()
_RNG = np.random.default_rng(1)


def trained(net: nn.Layer) -> nn.Layer:
    """With statistics and scales that are not those of the beginning."""
    for layer in net.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            for part, low, high in (
                *((layer._mean, -0.3, 0.3), (layer._variance, 0.5, 1.5)),
                *((layer.weight, 0.5, 1.5), (layer.bias, -0.3, 0.3)),
            ):
                part.set_value(_RNG.uniform(low, high, part.shape).astype("float32"))
    return net


class Block(nn.Layer):
    def __init__(self, taken: int, made: int, size: int, stride: Any, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2D(taken, made, size, stride, size // 2, groups=groups, bias_attr=False)
        self.norm = nn.BatchNorm2D(made)

    def forward(self, x: Any) -> Any:
        return F.hardswish(self.norm(self.conv(x)))


class Squeezed(nn.Layer):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2D(1)
        self.less, self.more = nn.Conv2D(channels, 2, 1), nn.Conv2D(2, channels, 1)

    def forward(self, x: Any) -> Any:
        scale = self.more(F.relu(self.less(self.pool(x))))
        return x * F.hardsigmoid(scale, slope=0.2, offset=0.5)


@model
def crnn() -> Made:
    """The shape of PaddleOCR's recognition: lines of text, 16 high and of any width."""

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(
                *(Block(3, 4, 3, 2), Block(4, 4, 3, 1, groups=4), Squeezed(4), Block(4, 6, 1, 1)),
                *(nn.MaxPool2D(2, (2, 1), 0), Block(6, 6, 5, (2, 1), groups=6)),
                nn.AvgPool2D((2, 1), (2, 1)),
            )
            self.neck = nn.LSTM(6, 4, num_layers=2, direction="bidirect")
            self.head = nn.Linear(8, 7)
            self.sizes = {"x": [None, 3, 16, None]}

        def forward(self, x: Any) -> Any:
            columns = paddle.squeeze(self.backbone(x), axis=2)
            y, _ = self.neck(paddle.transpose(columns, [0, 2, 1]))
            return F.softmax(self.head(y), axis=2)

    return trained(Model()), {"x": numbers(2, 3, 16, 24)}


class Several(nn.Layer):
    """Each on the same image."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.layers = nn.LayerList([part for part in parts if isinstance(part, nn.Layer)])
        self.functions = [part for part in parts if not isinstance(part, nn.Layer)]
        self.sizes = {"x": [None, 4, None, None]}

    def forward(self, x: Any) -> Any:
        return (*(part(x) for part in self.layers), *(part(x) for part in self.functions))


@model
def windows() -> Made:
    parts = [
        *(nn.Conv2D(4, 2, 3, stride=2, padding=1), nn.Conv2D(4, 2, 3, dilation=2, padding=2)),
        *(nn.Conv2D(4, 4, (3, 4), stride=2, padding="SAME", groups=2), nn.PReLU(4)),
        *(nn.Conv2D(4, 2, 3, padding="SAME", dilation=2), nn.PReLU(1)),
        *(nn.Conv2D(4, 2, 3, padding=[0, 1, 2, 1]), nn.Conv2D(4, 2, 3, padding="VALID")),
        nn.Conv2D(4, 2, 3, padding=1, padding_mode="reflect"),
        *(nn.MaxPool2D(3, 2, 1), nn.MaxPool2D(3, 2, 0, ceil_mode=True), nn.MaxPool2D(3, 2, "SAME")),
        *(nn.AvgPool2D(3, 2, 1), nn.AvgPool2D(3, 2, 1, exclusive=False)),
        *(nn.AvgPool2D(3, 2, 0, ceil_mode=True), nn.AdaptiveMaxPool2D(1)),
        *(nn.ZeroPad2D([1, 2, 0, 1]), nn.Pad2D([1, 2, 2, 1], mode="replicate")),
        nn.Pad2D([1, 0, 2, 1], mode="constant", value=0.5),
        lambda x: F.pad(x, [0, 0, 1, 0, 2, 1, 0, 3], value=2.0),
        lambda x: paddle.unbind(F.pad(x, [1, 1, 0, 2], mode="circular"), axis=1)[1],
    ]
    return Several(*parts), {"x": numbers(2, 4, 9, 11)}


@model
def norms_and_sizes() -> Made:
    parts = [
        nn.Conv2DTranspose(4, 2, 3, stride=2, padding=1, output_padding=1),
        *(nn.Conv2DTranspose(4, 2, 3, groups=2), nn.InstanceNorm2D(4)),
        lambda x: F.interpolate(x, size=[14, 7], mode="nearest"),
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x, size=[14, 7], mode="bilinear", align_mode=0),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_mode=1),
        lambda x: F.interpolate(x, size=[14, 7], mode="bilinear", align_corners=True),
    ]
    return Several(*parts), {"x": numbers(2, 4, 9, 11)}


@model
def group_norm() -> Made:
    """Not among the recorded ones: ONNX has it from opset 21 on, and these are written as 18."""
    return Several(nn.GroupNorm(2, 4), nn.Conv2D(4, 2, 3)), {"x": numbers(2, 4, 9, 11)}


if __name__ == "__main__":
    record_all(MODELS, "image_{}_{}")
