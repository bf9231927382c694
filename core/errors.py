"""Every error a user can meet, and the refusal that some of them carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Refusal:
    """Why something was not done: a pass that did not fire, a node that cannot run."""

    reason: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.where else self.reason


class OnernnError(Exception):
    """Base of all errors raised on purpose."""


class ModelFormatError(OnernnError):
    """A file cannot be what it claims to be; tells the file and, where known, the byte offset."""

    def __init__(self, reason: str, file: str | Path = "", offset: int | None = None) -> None:
        self.file, self.offset = str(file), offset
        place = f"{file}: " if file else ""
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{place}{reason}{at}")


class ShapeError(OnernnError, ValueError):
    """An array's rank, shape or dtype is not the one its role asks for."""


class UnsupportedError(OnernnError):
    """Something valid that cannot be run exactly; ``refusals`` tells what and where."""

    def __init__(self, message: str, refusals: tuple[Refusal, ...] = ()) -> None:
        self.refusals = refusals or (Refusal(message),)
        super().__init__(message)

    @property
    def refusal(self) -> Refusal:
        return self.refusals[0]


class MissingDependencyError(OnernnError, ImportError):
    """An optional package is needed and absent; the message says what to install."""


class LibraryError(OnernnError):
    """libdnnl cannot be found, loaded or used, or one of its calls failed."""
