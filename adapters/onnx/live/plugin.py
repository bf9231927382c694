"""onernn inside ONNX Runtime: recurrent nodes become nodes of ours in the same model.

ONNX Runtime runs the whole model in one session, ours by the kernels' library, which is one of
custom operators, too. See design/0039.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

from onernn.adapters.onnx.live.rewriting import data_beside, register, rewritten
from onernn.adapters.requirements import require
from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.operator_layers import OperatorLayers
from onernn.core.errors import Refusal, UnsupportedError

_log = logging.getLogger("onernn")


def optimize(
    model: Any,
    *,
    dtype: str = "f32",
    threads: int | None = None,
    backend: str = "auto",
    session_options: Any = None,
) -> Any:
    """An `onnxruntime.InferenceSession` of a model whose recurrent nodes are ours.

    ``model``: a path, a ModelProto or its bytes. ``dtype`` is that of `Session`. ``backend``:
    "auto" replaces the nodes that are measured as faster, "kernels" all that our kernels run; the
    others stay where they are. ``threads``: of ONNX Runtime and of ours; ``session_options``,
    ONNX Runtime's, tell it, too, and get our operators.

    The session has ``replaced``, a line for each node that ours runs, ``refusals``, why others are
    ONNX Runtime's, and ``explain()``, both.

    Raises `MissingDependencyError` without onnx and onnxruntime, `LibraryError` without kernels,
    `UnsupportedError` for a dtype or backend that is not known here, and what ONNX Runtime raises
    for the model.
    """
    runtime = require("onnxruntime", "onnx")
    options = _options(runtime, session_options, threads)
    if not isinstance(model, str | bytes | os.PathLike):
        model = model.SerializeToString()
    providers = ["CPUExecutionProvider"]
    return inference_session()(model, options, providers, dtype=dtype, backend=backend)


def _options(runtime: Any, given: Any, threads: int | None) -> Any:
    """The options of the session, whose threads are those of our layers, too."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    if given is None:
        given = runtime.SessionOptions()
        given.intra_op_num_threads = threads or 0
    elif threads not in (None, given.intra_op_num_threads):
        raise UnsupportedError(
            f"threads={threads}, but session_options.intra_op_num_threads is"
            f" {given.intra_op_num_threads}: ours run on as many as ONNX Runtime; give one of them"
        )
    return given


@cache
def inference_session() -> Any:
    """The class; ONNX Runtime is imported when it is asked for."""
    runtime = require("onnxruntime", "onnx")

    class InferenceSession(runtime.InferenceSession):  # type: ignore[misc, name-defined]
        """An `onnxruntime.InferenceSession` in whose model recurrent nodes are ours.

        It takes what ONNX Runtime's takes, as documented by onnxruntime.InferenceSession; methods,
        outputs and errors are ONNX Runtime's. ``dtype`` and ``backend`` are those of
        `onernn.adapters.onnx.optimize`, and so are ``replaced``, ``refusals`` and ``explain()``.
        ``sess_options`` get our operators. Nothing is replaced for providers other than the CPU's,
        nor where ``sess_options`` ask for a file of the optimized model.
        """

        def __init__(
            self,
            path_or_bytes: str | bytes | os.PathLike[str],
            sess_options: Any = None,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
            *,
            dtype: str = "f32",
            backend: str = "auto",
            **more: Any,
        ) -> None:
            self._given = path_or_bytes, sess_options, dtype, backend, more
            self._begin(providers, provider_options)

        def set_providers(
            self,
            providers: Sequence[Any] | None = None,
            provider_options: Sequence[dict[Any, Any]] | None = None,
        ) -> None:
            """See onnxruntime.InferenceSession; the model is read again."""
            self._begin(providers, provider_options)

        def _begin(self, *providers: Any) -> None:
            """Where ONNX Runtime refuses the model with our layers, it gets the one as given."""
            source, options, dtype, backend, more = self._given
            with closing(OperatorLayers(load_kernels())) as layers:
                made = rewritten(source, options, providers[0], layers, dtype, backend)
                if made.replaced:
                    own = runtime.SessionOptions() if options is None else options
                    try:
                        register(own)
                        with data_beside(own, made.folder):
                            first = {**more, "enable_fallback": 0}
                            super().__init__(made.source, own, *providers, **first)
                        if more.get("enable_fallback", 1):
                            self.enable_fallback()
                    except Exception as error:
                        why = f"ONNX Runtime refuses the model with our layers: {error}"
                        made = made._replace(replaced=(), refusals=(Refusal(why, "model"),))
            if not made.replaced:
                super().__init__(source, options, *providers, **more)
            self.replaced, self.refusals = made.replaced, made.refusals
            for line in self.explain().splitlines():
                _log.info("%s", line)

        def explain(self) -> str:
            """A line for each recurrent node: who runs it, and why."""
            theirs = [f"{each.where}: ONNX Runtime ({each.reason})" for each in self.refusals]
            return "\n".join([*self.replaced, *theirs]) or "no recurrent nodes"

    InferenceSession.__module__ = "onernn.adapters.onnx"
    InferenceSession.__qualname__ = "InferenceSession"
    return InferenceSession
