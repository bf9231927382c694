"""`onernn verify --against mxnet:PATH`: MXNet itself runs the symbol, and its own faults are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn
from onernn.core.errors import UnsupportedError
from onernn.verification.references import open_against
from onernn.verification.verifying import verify


@pytest.mark.parametrize(
    "name", ["gluon_language_model", "gluon_bidirectional_ntc", "gluon_foreach", "numpy_mode_model"]
)
def test_mxnet_gives_the_same_on_made_inputs(name: str, data: Path) -> None:
    folder = data / "mxnet" / name
    report = verify(onernn.load(folder), against=open_against(f"mxnet:{folder}"))
    assert report.passed and report.evidence is not None
    assert report.evidence.reference.who.startswith("mxnet 1.9.1")


@pytest.mark.parametrize(
    ("name", "cause"), [("op_lstm_seqlen", "mask_ignored"), ("op_lstm_clip", "clip_ignored")]
)
def test_what_mxnet_ignores_on_cpu_is_named(name: str, cause: str, shared_models: Path) -> None:
    path = shared_models / "mxnet" / name
    against = open_against(f"mxnet:{path}")
    report = verify(onernn.load(path), against=against)
    assert report.cause is not None and report.cause.id == cause
    assert verify(onernn.load(path, semantics="mxnet-cpu"), against=against).passed


def test_parameters_that_mxnet_unpacks_on_saving_are_told(data: Path) -> None:
    folder = data / "mxnet" / "legacy_fused_checkpoint"
    with pytest.raises(UnsupportedError, match="no 'lstm_parameters': was it unpacked"):
        verify(onernn.load(folder), against=open_against(f"mxnet:{folder}"))
