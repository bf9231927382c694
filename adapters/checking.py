"""Whether what was written is what the model is: it is read, and its types are inferred, again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import Graph
from onernn.core.types import Type
from onernn.runtime.session import unsupported


def check_again(read: Callable[[], Graph], path: Path, outputs: Sequence[Type]) -> None:
    """Raises `UnsupportedError`, that ``path`` is not written, where it would be wrong.

    The outputs of what ``read`` gives must be of these types, in order; ragged ones may come
    padded.
    """
    try:
        graph = read()
        found = {value.name: graph.types[value.name] for value in graph.outputs}
        wrong = [str(refusal) for refusal in unsupported(graph)] or [
            f"{name!r} is {given}, not {want}"
            for (name, given), want in zip(found.items(), outputs, strict=False)
            if not _fits(given, want)
        ]
        if len(found) != len(outputs):
            wrong.append(f"it gives {len(found)} outputs, not {len(outputs)}")
    except OnernnError as error:
        wrong = [str(error)]
    if wrong:
        raise UnsupportedError(f"{path} is not written, it would be wrong: {'; '.join(wrong)}")


def _fits(found: Type, want: Type) -> bool:
    """Whether dtype, LoD depth and, as far as they are known, rank and sizes agree."""
    padded = want.depth > found.depth == 0  # (N, T, ...) for words (W, ...)
    sizes, wanted = found.counts[2 * padded :], want.counts[padded:]
    if found.dtype != want.dtype or not padded and found.depth != want.depth:
        return False
    return found.shape is None or (
        len(sizes) == len(wanted)
        and all(None in pair or pair[0] == pair[1] for pair in zip(sizes, wanted, strict=True))
    )
