"""From which sizes on a layer runs faster here: the rules of the design pages."""

from __future__ import annotations

import itertools

from onernn.adapters.common import gain

SIZES = [
    gain.Size(*size, 4 * size[2] ** 2)
    for size in itertools.product((1, 7, 8, 31, 40), (1, 4, 64), (3, 16, 32, 127, 128, 512, 1024))
]


def test_the_tables_rows_are_the_rules_of_the_design_pages() -> None:
    rules = {
        "PADDLE": lambda s, words: words >= 8 and words * s.hidden >= 1024,
        "PADDLE_TRAINING": lambda s, words: words >= max(32, s.hidden // 4),
        "MXNET_CELLS": lambda s, _: s.steps >= 12,
        "MXNET_GRU": lambda s, words: words * s.products >= 3e9,
        "MXNET_NEVER": lambda *_: False,
        "TORCH_TRAINING": lambda s, _: s.steps * s.hidden >= 1000,
        "TORCH_PADDED_LSTM_TRAINING": lambda s, words: (
            words >= 2000 and words * s.products >= 200_000_000
        ),
    }
    for name, rule in rules.items():
        found = [gain.is_faster(size, getattr(gain, name)) for size in SIZES]
        assert found == [rule(size, size.steps * size.sequences) for size in SIZES], name
        assert any(found) != (name == "MXNET_NEVER") and not all(found)
