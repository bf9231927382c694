"""What lets torch.compile trace through modules that are ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_BUILDER = "torch._dynamo.variables.builder"


class _Awaited(MetaPathFinder):
    """Calls a function when a module has been imported, by whoever needs it."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def run(module: Any) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def trace_through(may_trace: Callable[[Any, Any], bool]) -> None:
    """torch.compile traces calls of recurrent modules for which ``may_trace(module, compiler)``.

    It breaks graphs at all nn.RNN, LSTM and GRU, since it would unroll their steps
    (torch._dynamo.config.allow_rnn); ours are one operator each. Its tracer is imported with the
    first torch.compile, in seconds: nobody else waits for it.
    """

    def patch(builder: Any) -> None:
        kind, config = builder.VariableBuilder, builder.config
        wrap = kind.wrap_module

        def wrap_module(self: Any, value: Any) -> Any:
            if not may_trace(value, self.tx.output.compiler_fn):
                return wrap(self, value)
            with config.patch(allow_rnn=True):
                return wrap(self, value)

        kind.wrap_module = wrap_module

    if _BUILDER in sys.modules:
        patch(sys.modules[_BUILDER])
    else:
        sys.meta_path.insert(0, _Awaited(_BUILDER, patch))
