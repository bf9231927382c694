"""Networks as Paddle's users write them, and what they do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

from onernn.adapters.paddle import restore
from onernn.ir.arrays import Array

nn, F = paddle.nn, paddle.nn.functional
Plug = Callable[[Any], Any]
N, T, I, O, WORDS = 4, 9, 6, 19, 20  # noqa: E741
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, T, I)).astype(np.float32)
TOKENS, LENGTHS = RNG.integers(1, WORDS, (N, T)), np.array([9, 2, 5, 1])


class Tagger(nn.Layer):
    """PaddleNLP's lexical analysis: emissions, and the best paths through them."""

    given = {"tokens": TOKENS, "lengths": LENGTHS}

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, I)
        self.gru = nn.GRU(I, O, 2, direction="bidirectional")
        self.fc = nn.Linear(2 * O, 5)
        self.transitions = self.create_parameter((5, 5))
        self.decoder = paddle.text.ViterbiDecoder(self.transitions, True)

    def forward(self, tokens: Any, lengths: Any) -> Any:
        scores = self.fc(self.gru(self.words(tokens), sequence_length=lengths)[0])
        return scores, self.decoder(scores, lengths)[1]


class Encoder(nn.Layer):
    """PaddleSpeech's DeepSpeech2: cells both ways, each behind a norm, and columns of an image."""

    given = {"sound": X[:, None]}

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cells = nn.Conv2D(1, 4, 3, padding=1), nn.LayerList()
        self.projections, self.norms = nn.LayerList(), nn.LayerList()
        for is_reverse in (False, True):
            self.cells.append(nn.RNN(nn.GRUCell(3 * O, O), is_reverse))
            self.projections.append(nn.Linear(4 * I, 3 * O, bias_attr=False))
            self.norms.append(nn.BatchNorm1D(3 * O))
        self.gru, self.out = nn.LSTM(2 * O, O, 2), nn.Linear(O, 3)

    def forward(self, sound: Any) -> Any:
        x = F.relu(self.conv(sound)).transpose([0, 2, 1, 3]).flatten(2)
        sides = []
        for cell, linear, norm in zip(self.cells, self.projections, self.norms):  # noqa: B905
            sides.append(cell(norm(linear(x).transpose([0, 2, 1])).transpose([0, 2, 1]))[0])
        return self.out(self.gru(paddle.concat(sides, -1))[0])


class Vocoder(nn.Layer):
    """PaddleSpeech's WaveRNN: two layers from states of zeros, with sums around them."""

    given = {"mels": X}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(I, O), nn.Linear(O, 8)
        self.rnn1, self.rnn2 = nn.GRU(O, O), nn.GRU(O, O)

    def forward(self, mels: Any) -> Any:
        start = paddle.zeros([1, paddle.shape(mels)[0], O])
        x = self.first(mels)
        x = x + self.rnn1(x, start)[0]
        return self.out(x + self.rnn2(x, start)[0])


class Synthesizer(nn.Layer):
    """Tacotron's decoder: cells step by step, which attend to what a layer has read."""

    given = {"tokens": TOKENS, "lengths": LENGTHS}

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(WORDS, I), nn.LSTM(I, O, direction="bidirect")
        self.cell, self.out = nn.LSTMCell(2 * O + 3, 2 * O), nn.Linear(4 * O, 3)

    def forward(self, tokens: Any, lengths: Any) -> Any:
        memory, _ = self.encoder(self.words(tokens), sequence_length=lengths)
        frame, read, states, frames = paddle.zeros([N, 3]), paddle.zeros([N, 2 * O]), None, []
        for _ in range(4):
            h, states = self.cell(paddle.concat([frame, read], -1), states)
            weights = F.softmax(paddle.bmm(memory, h.unsqueeze(-1)), 1)
            read = (weights * memory).sum(1)
            frame = self.out(paddle.concat([h, read], -1))
            frames.append(frame)
        return paddle.stack(frames, 1)


def script(kind: Any, plug: Plug) -> list[Array]:
    """What it gives when it was trained, and again when it was restored."""
    paddle.seed(3)
    net = plug(kind())
    given = [paddle.to_tensor(each) for each in kind.given.values()]
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    for _ in range(2):
        out = net(*given)
        loss = ((out[0] if isinstance(out, tuple) else out) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    net.eval()
    out = net(*given)
    outs = [*paddle.utils.flatten(out), *paddle.utils.flatten(restore(net)(*given))]
    return [each.numpy() for each in outs]


KINDS = Tagger, Encoder, Vocoder, Synthesizer
