"""Optional packages, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from onernn.core.errors import MissingDependencyError


def require(module: str, extra: str) -> ModuleType:
    """The module, or `MissingDependencyError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs {module.partition('.')[0]!r}; run: pip install 'onernn[{extra}]'"
        ) from error
