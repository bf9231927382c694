"""The ONNX adapter: it reads and writes models, provides an onnx.backend.base.Backend, and runs
recurrent layers inside ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Plugin, Runtime, Writer, defer

if TYPE_CHECKING:  # so that type checkers see the signatures
    from onernn.adapters.onnx.plugin import optimize as optimize
    from onernn.adapters.onnx.plugin import plug as plug

    InferenceSession: Any
else:

    def __getattr__(name: str) -> Any:
        """Returns a function or class of the plug-in, which is imported on first use because
        reading a model does not need its imports.
        """
        if name in ("optimize", "plug", "InferenceSession"):
            from onernn.adapters.onnx import plugin

            made = name == "InferenceSession"
            return plugin.inference_session() if made else getattr(plugin, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _plugin(path: str) -> Plugin:
    from onernn.adapters.onnx.read import RECURRENT

    return Plugin(call=f"onnx.optimize({path!r})", host="ONNX Runtime", replaces=RECURRENT)


RUNTIME = Runtime(
    name="onnxruntime",
    packages=("onnxruntime",),
    extra="onnx",
    run=defer("onnx.run_model.run_model"),
)

ADAPTER = Adapter(
    name="ONNX",
    files="an .onnx",
    reads=lambda path: str(path).endswith(".onnx"),
    load=defer("onnx.lower.load_onnx"),
    no_params="the parameters of an ONNX model are named in the model",
    semantics=("onnxruntime",),
    asks_sizes=True,
    find_faults=defer("onnx.faults.find_faults"),
    writer=Writer(
        suffix=".onnx",
        write=defer("onnx.write.write_onnx"),
        options={"opset": None, "output_dtype": "float32", "names": None, "allow_functions": False},
        pads=defer("onnx.write.pad"),
        runtime=RUNTIME,
    ),
    runtime=RUNTIME,
    plugin=_plugin,
)
