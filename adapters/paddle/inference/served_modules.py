"""The modules of Paddle that onernn provides, their names, and the import hook."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from onernn.adapters.paddle.inference import predictors, tensors
from onernn.adapters.paddle.inference.config import MODULE_NOT_HERE, AnalysisConfig
from onernn.adapters.paddle.inference.tensors import name_asker
from onernn.ir.errors import UnsupportedError

# The version of Paddle whose behaviour onernn follows.

PADDLE_VERSION = "2.6.2"


def get_version() -> str:
    """Returns a text that begins with Paddle's version."""
    return f"version: {PADDLE_VERSION}\ncommit: onernn\nbranch: onernn\n"


def get_trt_compile_version() -> tuple[int, int, int]:
    """Returns zeros, because there is no TensorRT."""
    return 0, 0, 0


get_trt_runtime_version = get_trt_compile_version


def _set_device(device: str) -> predictors.CPUPlace:
    if device != "cpu":
        raise UnsupportedError(
            f"paddle.set_device({device!r}): expected 'cpu'; onernn runs on CPUs only"
        )
    return predictors.CPUPlace()


def _of(module: ModuleType, names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split()}


_COMPILED = dict.fromkeys(("is_compiled_with_cuda", "is_compiled_with_rocm"), lambda: False)
_PLACES = _of(predictors, "CPUPlace CUDAPlace")
_CORE = {
    **_PLACES,
    **_of(
        predictors,
        """
        AnalysisPredictor PaddleInferPredictor PredictorPool Scope create_paddle_predictor
        create_predictor
        """,
    ),
    **_of(tensors, "LoDTensor PaddleBuf PaddleDType PaddleInferTensor PaddlePlace PaddleTensor"),
    "AnalysisConfig": AnalysisConfig,
    "Tensor": tensors.LoDTensor,
    "ZeroCopyTensor": tensors.PaddleInferTensor,
    "get_cuda_device_count": lambda: 0,
    "get_version": get_version,
    **_COMPILED,
}
_SHARED = {
    **_PLACES,
    **_of(predictors, "Executor global_scope scope_guard"),
    **_of(tensors, "LoDTensor create_lod_tensor"),
    "default_startup_program": predictors.LoadedProgram,
}
_DEVICE = {
    **_COMPILED,
    "is_compiled_with_xpu": lambda: False,
    "get_device": lambda: "cpu",
    "set_device": _set_device,
}
_FLUID = {
    **_SHARED,
    "Scope": predictors.Scope,
    "Tensor": tensors.LoDTensor,
    "is_compiled_with_cuda": lambda: False,
}

SERVED: dict[str, dict[str, Any]] = {
    "paddle": {
        **_DEVICE,
        **_PLACES,
        "Tensor": tensors.EagerTensor,
        "__version__": PADDLE_VERSION,
        **dict.fromkeys(
            ("disable_signal_handler", "disable_static", "enable_static"), lambda: None
        ),
        "no_grad": nullcontext,
        "onernn": f"onernn {version('onernn')} in place of Paddle",
        "to_tensor": tensors.EagerTensor,
    },
    "paddle.base": _FLUID,
    "paddle.base.core": _CORE,
    "paddle.device": _DEVICE,
    "paddle.fluid": _FLUID,
    "paddle.fluid.core": _CORE,
    "paddle.fluid.io": {"load_inference_model": predictors.load_inference_model},
    "paddle.inference": {
        "Config": AnalysisConfig,
        "DataType": tensors.PaddleDType,
        "PlaceType": tensors.PaddlePlace,
        "PrecisionType": tensors.Precision,
        "Predictor": predictors.PaddleInferPredictor,
        "Tensor": tensors.PaddleInferTensor,
        **_of(predictors, "PredictorPool create_predictor"),
        **_of(tensors, "get_num_bytes_of_data_type"),
        "get_trt_compile_version": get_trt_compile_version,
        "get_trt_runtime_version": get_trt_runtime_version,
        "get_version": get_version,
    },
    "paddle.inference.contrib": {},
    "paddle.inference.contrib.utils": {"copy_tensor": tensors.copy_tensor},
    "paddle.nn": {},  # imported by programs that also train
    "paddle.nn.functional": {},
    "paddle.static": {**_SHARED, "load_inference_model": predictors.load_static_model},
    "paddle.version": {
        "cuda": lambda: "False",
        "full_version": PADDLE_VERSION,
        **dict(zip(("major", "minor", "patch"), PADDLE_VERSION.split("."), strict=True)),
    },
}
"""The names and objects that onernn provides, by module of Paddle. Submodules are attributes
too.
"""


class ServedModule(ModuleType):
    """A module of Paddle that onernn provides. A missing name raises an error with the caller's
    line.
    """

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing(f"{self.__name__}.{name}"))


def missing(name: str) -> str:
    """Returns the error message for a missing ``name``."""
    module = name.rpartition(".")[0]
    while module not in SERVED:
        module = module.rpartition(".")[0]
    why = MODULE_NOT_HERE.get(name.rpartition(".")[2])
    reason = f" ({why})" if why and module == "paddle.inference" else ""
    below = {each.removeprefix(f"{module}.").partition(".")[0] for each in SERVED if module in each}
    names = ", ".join(sorted({*SERVED[module], *below} - {module, "__version__"}))
    return (
        f"{name} is not supported{reason}, {name_asker()}; this paddle is onernn, which runs saved"
        f" models, but does not build or train models; {module} has {names}"
    )


# The import hook, which is active only after `install`.


class _Finder(Loader):
    """A finder and loader of ``paddle`` and its submodules."""

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
    """Makes ``import paddle``, ``import paddle.fluid``, ... import onernn's modules in this
    process.

    Raises `UnsupportedError` if Paddle is installed, unless ``replace`` is true. Always raises it
    if Paddle is imported already.
    """
    if _FINDER in sys.meta_path:
        return
    if "paddle" in sys.modules:
        raise UnsupportedError(
            "paddle is imported already; call install() before the first import of it"
        )
    if not replace and find_spec("paddle") is not None:
        raise UnsupportedError(
            "a package 'paddle' is installed here; install(replace=True), or paddle-run --replace,"
            " runs the program on onernn nevertheless"
        )
    sys.meta_path.insert(0, _FINDER)
    for name in SERVED:  # "import paddle" is enough to reach paddle.fluid
        import_module(name)
