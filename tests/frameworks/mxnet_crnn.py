"""A CRNN as its users write it in gluon: convolutions over a line of text, then LSTMs both ways."""

from __future__ import annotations

from typing import Any

import mxnet as mx

nn = mx.gluon.nn


class Crnn(mx.gluon.HybridBlock):
    """Images (N, 1, 16, W) as probabilities (W', N, labels)."""

    def __init__(self, hidden: int = 6, labels: int = 5) -> None:
        super().__init__()
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(
                nn.Conv2D(4, 3, padding=1, activation="relu"),
                nn.MaxPool2D(2, 2),
                nn.Conv2D(6, 3, padding=1, use_bias=False),
                nn.BatchNorm(epsilon=1e-5),
                nn.LeakyReLU(0.1),
                nn.MaxPool2D((2, 2), (2, 1), (0, 1)),
                nn.Conv2D(8, 3, padding=1, groups=2),
                nn.BatchNorm(scale=False),
                nn.PReLU(),
                nn.AvgPool2D((2, 1), (2, 1), ceil_mode=True),
                nn.Conv2D(8, 2),
            )
            self.lstm = mx.gluon.rnn.LSTM(hidden, 2, bidirectional=True, dropout=0.1)
            self.out = nn.Dense(labels, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        columns = F.transpose(F.squeeze(self.features(x), axis=2), axes=(2, 0, 1))
        return F.softmax(self.out(self.lstm(columns)))
