"""Arrays of tensors, while a program is lowered: a graph has no values of that type.

What a loop appends in every turn is what it collects; the element that it appended last is carried.
"""

from __future__ import annotations

from collections.abc import Callable

from onernn.core.errors import UnsupportedError
from onernn.core.records import dataclass
from onernn.core.sizes import Size


@dataclass(frozen=True)
class Part:
    """``value``: one element, or several along a new first axis; ``count`` of them.

    Those that a loop appended in the turns before have no value. ``last``: the last element.
    """

    value: str
    count: Size | None
    last: str = ""
    stacked: bool = False

    @classmethod
    def of(cls, element: str) -> Part:
        return cls(element, Size.of(1), element)

    @property
    def single(self) -> bool:
        return bool(self.value) and not self.stacked


@dataclass(frozen=True)
class TensorArray:
    parts: tuple[Part, ...] = ()

    @property
    def length(self) -> Size | None:
        """How many elements it has, None where nobody knows."""
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(filter(None, counts), Size.of(0))

    def written(self, at: Size | None, value: str) -> TensorArray:
        """With an element at an index: behind the last one, or in the place of a known one."""
        behind = self._behind(at)
        if behind == 0:
            return TensorArray((*self.parts, Part.of(value)))
        place = len(self.parts) - (behind or 0)
        if (behind or 0) < 1 or place < 0 or not all(each.single for each in self.parts[place:]):
            raise UnsupportedError(
                "it writes to an index that is not known as the array's end; append to it"
            )
        return TensorArray((*self.parts[:place], Part.of(value), *self.parts[place + 1 :]))

    def element(self, at: Size | None) -> str:
        """The value of an element, "" where it has to be taken from all of them."""
        behind = self._behind(at)
        if behind is not None and behind < 1:
            raise UnsupportedError("it reads an element that nobody has written")
        if behind is not None and behind <= len(self.parts):
            part, *later = self.parts[-behind:]
            if part.last and all(each.single for each in later):
                return part.last
        if not all(part.value for part in self.parts):
            raise UnsupportedError(
                "while a loop fills an array, only the element that it appended last is read"
            )
        return ""

    def all(self, emit: Callable[..., str], axis: str) -> str:
        """The elements along a new first axis. ``axis``: a constant list of it, [0]."""
        if not self.parts:
            raise UnsupportedError("an array without elements")
        if not all(part.value for part in self.parts):
            raise UnsupportedError("it reads all elements of an array while a loop fills it")
        parts = [p.value if p.stacked else emit("Unsqueeze", p.value, axis) for p in self.parts]
        return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=0)

    def _behind(self, at: Size | None) -> int | None:
        """How far from the end an index is, None where nobody knows."""
        length = self.length
        return None if at is None or length is None else (length - at).number
