"""The fault corpus beside Paddle: its table says what this version does."""

from __future__ import annotations

import paddle
import pytest
from support.corpus import check_verdicts, entries


@pytest.mark.parametrize("entry", entries("paddle"))
def test_the_table_says_what_paddle_does(entry: str) -> None:
    check_verdicts("paddle", entry, paddle.__version__)
