"""What an audit tells of exported programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from onernn import UnsupportedError, audit

DATA = Path(__file__).parents[2] / "data" / "torch"


@pytest.mark.parametrize("name", ["tagger", "rows_dynamic", "tagger_2_5"])
def test_a_time_that_torch_export_fixed_is_named(name: str) -> None:
    (finding,) = audit(DATA / name / "model.pt2").findings
    assert (finding.fault, finding.effect, finding.paths) == ("fixed_time", "refuses", ("pytorch",))
    assert "for 7 steps and no other" in finding.text and "any number here" in finding.text


def test_steps_that_were_unrolled_hold_no_time_of_a_layer() -> None:
    assert not audit(DATA / "cells" / "model.pt2").findings


def test_parameters_are_in_the_file() -> None:
    with pytest.raises(UnsupportedError, match="params"):
        audit(DATA / "rows" / "model.pt2", params="elsewhere")
