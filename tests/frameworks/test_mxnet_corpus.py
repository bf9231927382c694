"""The fault corpus beside MXNet: its table says what this version does."""

from __future__ import annotations

import mxnet
import pytest
from support.corpus import check_verdicts, entries


@pytest.mark.parametrize("entry", entries("mxnet"))
def test_the_table_says_what_mxnet_does(entry: str) -> None:
    check_verdicts("mxnet", entry, mxnet.__version__)
