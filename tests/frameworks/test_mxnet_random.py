"""Random models beside MXNet: ONERNN_MXNET_MODELS says how many, 60 unless told."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from support.recorded_operators import differences
from tests.frameworks.mxnet_models import KINDS, random_model

from onernn import Session, load

COUNT = int(os.environ.get("ONERNN_MXNET_MODELS", "60"))
FIRST = int(os.environ.get("ONERNN_MXNET_FIRST", "0"))


def test_random_models_give_what_mxnet_gives(tmp_path: Path) -> None:
    """From the files, fused, on oneDNN: what MXNet computed on CPU, and one rnn for each layer."""
    wrong, kinds = [], Counter[str]()
    for seed in range(FIRST, FIRST + COUNT):
        folder = tmp_path / str(seed)
        folder.mkdir()
        saved = random_model(seed, folder)
        session = Session(load(saved.symbol, semantics="mxnet-cpu"))
        found = differences(session.run(saved.inputs), saved.expected, saved.names)
        if found:
            wrong.append((seed, saved.kind, found))
        count = sum(node.op == "Rnn" for node in session.graph.nodes)
        if saved.rnns is not None and not 1 <= count <= saved.rnns:
            wrong.append((seed, saved.kind, [f"{count} rnns, expected {saved.rnns}"]))
        kinds[saved.kind] += 1
    assert not wrong, wrong
    assert sum(kinds.values()) == COUNT and len(kinds) >= min(COUNT, len(KINDS)), kinds
