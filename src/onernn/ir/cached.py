"""Properties that are computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - its name elsewhere
        """That of functools, without a lock, as from Python 3.12 on.

        The lock of 3.11 is one for all objects: where another thread holds it at a fork, the child
        waits for it forever. Two threads at once may compute the same value twice.
        """

        def __init__(self, compute):
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))
