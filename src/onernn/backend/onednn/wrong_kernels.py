"""Kernels that return success and wrong numbers: where, why, and so what is not asked for.

Each line was measured on 3.2.0 and 3.6.2 against the float64 reference (see design/0013);
`onernn doctor` looks for more of them on the machine at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from onernn.ir.spec import RnnSpec


class Wrong(NamedTuple):
    """What is wrong, and for which layers in which data type."""

    reason: str
    where: Callable[[RnnSpec, str], bool]


OWN_LAYOUTS = (
    # The kernel misreads the layout that it chose for the projection.
    Wrong(
        "narrow projection",
        lambda spec, dtype: spec.projection_size is not None and dtype in ("bf16", "f16"),
    ),
    # The brgemm kernel hands the attention of its first rows to every block of rows: wrong as soon
    # as a batch has two blocks. Whether it has depends on N, O, threads and instruction set (with
    # AVX-512: O up to 32 and N = 16, 20, 24, 25, 28, 30, 32, 35, ...), in 3.2 for AUGRU in bf16,
    # in 3.6 for LBR_AUGRU in f32, too. The kernel of plain layouts is right in all of them.
    Wrong("attention of another sentence", lambda spec, _: spec.cell.has_attention),
)
"""Wrong over weights in the layouts that the primitive chooses, right over plain ones."""

GRADIENTS = (
    Wrong(  # in 3.2, 3.6 and 3.13 alike
        "has wrong gradients unless attention is 0", lambda spec, _: spec.cell.has_attention
    ),
    # The gradient of the projected state is kept where the four gates' are, in rows that are as
    # long as those, rounded up to 16: a longer one runs into the next row.
    Wrong(
        "has wrong gradients where the projection is wider than the gates",
        lambda spec, _: spec.recurrent_size > 4 * spec.hidden_size,
    ),
)
"""Wrong in `backward`; the reason continues a sentence about the cell."""


def reason(table: tuple[Wrong, ...], spec: RnnSpec, dtype: str) -> str:
    """Of the first line of the table that a layer meets, "" where it meets none."""
    return next((wrong.reason for wrong in table if wrong.where(spec, dtype)), "")
