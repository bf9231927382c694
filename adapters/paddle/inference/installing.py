"""``import paddle`` finds this face: only where somebody asked for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from onernn.adapters.paddle.inference.served_modules import SERVED, ServedModule, missing
from onernn.core.errors import UnsupportedError


class _Finder(Loader):
    """Finds ``paddle`` and the modules below it, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "paddle":
            return None
        if name not in SERVED:
            raise ImportError(missing(name), name=name)
        return ModuleSpec(name, self, origin="onernn", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ServedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(SERVED[module.__name__])


_FINDER = _Finder()


def install(*, replace: bool = False) -> None:
    """From now on ``import paddle``, ``import paddle.fluid``, ... find this face, in this process.

    Raises `UnsupportedError` where Paddle is installed, unless ``replace`` says to put the face in
    its place; where it is imported already in any case.
    """
    if _FINDER in sys.meta_path:
        return
    if "paddle" in sys.modules:
        raise UnsupportedError(
            "paddle is imported already: install() before the first import of it"
        )
    if not replace and find_spec("paddle") is not None:
        raise UnsupportedError(
            "a package 'paddle' is installed here; install(replace=True), or paddle-run --replace,"
            " runs the program on onernn nevertheless"
        )
    sys.meta_path.insert(0, _FINDER)
    for name in SERVED:  # paddle.fluid is there behind "import paddle" alone, too
        import_module(name)
