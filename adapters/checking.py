"""Whether what was written does what the model does: it is read and run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onernn.adapters.types import Type
from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import Graph
from onernn.core.ragged import Ragged, data_of
from onernn.runtime.session import Session


def check_again(
    read: Callable[[], Graph], path: Path, outputs: Sequence[Type], feed: Mapping[str, Any]
) -> None:
    """Raises `UnsupportedError`, that ``path`` is not written, where it would be wrong.

    What ``read`` gives must run on ``feed`` and give these types and shapes, in order; ragged ones
    may come padded.
    """
    try:
        given = Session(read(), backend="reference", passes=()).run(feed)
        wrong = [
            f"{name!r} is {data_of(value).dtype} {data_of(value).shape}, not {want}"
            for (name, value), want in zip(given.items(), outputs, strict=False)
            if not _fits(value, want)
        ]
        if len(given) != len(outputs):
            wrong.append(f"it gives {len(given)} outputs, not {len(outputs)}")
    except OnernnError as error:
        wrong = [str(error)]
    if wrong:
        raise UnsupportedError(f"{path} is not written, it would be wrong: {'; '.join(wrong)}")


def _fits(value: Any, want: Type) -> bool:
    array, shape = data_of(value), want.shape or ()
    if isinstance(value, Ragged):
        return array.dtype == want.dtype and (len(value.lod), array.shape) == (want.depth, shape)
    padded = bool(want.depth)  # (N, T, ...) for words (W, ...)
    return array.dtype == want.dtype and array.shape[2 * padded :] == shape[padded:]
