"""Why rows were rejected, as a column: engines deal with rows, and not with files beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onernn.batch.scorer import Scored
from onernn.core.errors import ShapeError

if TYPE_CHECKING:
    import pyarrow as pa

REJECTED = "rejected"


def told(scored: Scored, column: str) -> pa.Table:
    """The table with the reason of each row that could not be scored, null for the others."""
    import pyarrow as pa

    if column in scored.table.column_names:
        raise ShapeError(f"there is a column {column!r} already: give another name (rejected=)")
    reasons: list[str | None] = [None] * scored.table.num_rows
    for each in scored.rejected.to_pylist():
        reasons[each["row"]] = each["reason"]
    return scored.table.append_column(column, pa.array(reasons, pa.string()))
