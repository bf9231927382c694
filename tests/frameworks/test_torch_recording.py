"""Tensors and packed sequences of a real PyTorch in recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from onernn import recording


@pytest.mark.parametrize("lengths", [[3, 2, 1], [1, 3, 2], [2, 2]])
def test_tensors_and_packed_sequences_are_recorded(lengths: list[int], tmp_path: Path) -> None:
    sentences = [torch.randn(n, 2, requires_grad=True) for n in lengths]
    packed = pack_sequence(sentences, enforce_sorted=False)
    half = torch.randn(3).to(torch.bfloat16)
    recording.save(tmp_path / "io.npz", {"x": packed, "half": half}, [sentences[0]])
    with np.load(tmp_path / "io.npz") as found:
        assert found["lod__x"].tolist() == [0, *np.cumsum(lengths)]
        np.testing.assert_array_equal(found["in__x"], torch.cat(sentences).detach().numpy())
        np.testing.assert_array_equal(found["in__half"], half.float().numpy())
        np.testing.assert_array_equal(found["out__0"], sentences[0].detach().numpy())
