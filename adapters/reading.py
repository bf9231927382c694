"""What every reader of a model's files runs under: a budget of memory, and errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onernn.adapters.adapter import StrPath
from onernn.core.budget import budget_of_load, return_freed_memory
from onernn.core.errors import BudgetError, ModelFormatError
from onernn.core.guard import guarded


@contextmanager
def reading(path: StrPath) -> Iterator[None]:
    """Errors that arise inside are ours, and name the file."""
    try:
        with guarded(lambda: path), budget_of_load():
            yield
            return_freed_memory()  # before weights are packed: both together would be the peak
    except BudgetError as error:
        raise BudgetError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror or error}", path) from error
