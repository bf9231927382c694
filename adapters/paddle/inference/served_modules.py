"""The modules that programs import from Paddle, and what each has here."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import version
from types import ModuleType
from typing import Any

from onernn.adapters.paddle.inference import (
    data_types,
    executor,
    legacy_tensors,
    predictors,
    tensors,
    versions,
)
from onernn.adapters.paddle.inference.config import AnalysisConfig
from onernn.adapters.paddle.inference.errors import asked_by
from onernn.adapters.paddle.inference.options import MODULE_NOT_HERE
from onernn.adapters.paddle.inference.versions import PADDLE_VERSION
from onernn.core.errors import UnsupportedError


def _no(*_: object) -> bool:
    return False


def _set_device(device: str) -> executor.CPUPlace:
    if device != "cpu":
        raise UnsupportedError(f"paddle.set_device({device!r}): onernn runs on CPUs only: 'cpu'")
    return executor.CPUPlace()


def _get_device() -> str:
    return "cpu"


def _nothing() -> None:
    pass


_CORE = {
    "AnalysisConfig": AnalysisConfig,
    "AnalysisPredictor": predictors.AnalysisPredictor,
    "CPUPlace": executor.CPUPlace,
    "CUDAPlace": executor.CUDAPlace,
    "LoDTensor": tensors.LoDTensor,
    "PaddleBuf": legacy_tensors.PaddleBuf,
    "PaddleDType": data_types.PaddleDType,
    "PaddleInferPredictor": predictors.PaddleInferPredictor,
    "PaddleInferTensor": tensors.PaddleInferTensor,
    "PaddlePlace": data_types.PaddlePlace,
    "PaddleTensor": legacy_tensors.PaddleTensor,
    "PredictorPool": predictors.PredictorPool,
    "Scope": executor.Scope,
    "Tensor": tensors.LoDTensor,
    "ZeroCopyTensor": tensors.PaddleInferTensor,
    "create_paddle_predictor": predictors.create_paddle_predictor,
    "create_predictor": predictors.create_predictor,
    "get_cuda_device_count": lambda: 0,
    "get_version": versions.get_version,
    "is_compiled_with_cuda": _no,
    "is_compiled_with_rocm": _no,
}
_SHARED = {
    "CPUPlace": executor.CPUPlace,
    "CUDAPlace": executor.CUDAPlace,
    "Executor": executor.Executor,
    "LoDTensor": tensors.LoDTensor,
    "create_lod_tensor": tensors.create_lod_tensor,
    "default_startup_program": executor.LoadedProgram,
    "global_scope": executor.global_scope,
    "scope_guard": executor.scope_guard,
}
_DEVICE = {
    "get_device": _get_device,
    "is_compiled_with_cuda": _no,
    "is_compiled_with_rocm": _no,
    "is_compiled_with_xpu": _no,
    "set_device": _set_device,
}
_FLUID = {
    **_SHARED,
    "Scope": executor.Scope,
    "Tensor": tensors.LoDTensor,
    "is_compiled_with_cuda": _no,
}

SERVED: dict[str, dict[str, Any]] = {
    "paddle": {
        **_DEVICE,
        "CPUPlace": executor.CPUPlace,
        "CUDAPlace": executor.CUDAPlace,
        "Tensor": tensors.EagerTensor,
        "__version__": PADDLE_VERSION,
        "disable_signal_handler": _nothing,
        "disable_static": _nothing,
        "enable_static": _nothing,
        "no_grad": nullcontext,
        "onernn": f"onernn {version('onernn')} in place of Paddle",
        "to_tensor": tensors.EagerTensor,
    },
    "paddle.base": _FLUID,
    "paddle.base.core": _CORE,
    "paddle.device": _DEVICE,
    "paddle.fluid": _FLUID,
    "paddle.fluid.core": _CORE,
    "paddle.fluid.io": {"load_inference_model": executor.load_inference_model},
    "paddle.inference": {
        "Config": AnalysisConfig,
        "DataType": data_types.PaddleDType,
        "PlaceType": data_types.PaddlePlace,
        "PrecisionType": data_types.Precision,
        "Predictor": predictors.PaddleInferPredictor,
        "PredictorPool": predictors.PredictorPool,
        "Tensor": tensors.PaddleInferTensor,
        "create_predictor": predictors.create_predictor,
        "get_num_bytes_of_data_type": data_types.get_num_bytes_of_data_type,
        "get_trt_compile_version": versions.get_trt_compile_version,
        "get_trt_runtime_version": versions.get_trt_runtime_version,
        "get_version": versions.get_version,
    },
    "paddle.inference.contrib": {},
    "paddle.inference.contrib.utils": {"copy_tensor": tensors.copy_tensor},
    "paddle.nn": {},  # programs import these at the top, for training alone
    "paddle.nn.functional": {},
    "paddle.static": {**_SHARED, "load_inference_model": executor.load_static_model},
    "paddle.version": {
        "cuda": lambda: "False",
        "full_version": PADDLE_VERSION,
        **dict(zip(("major", "minor", "patch"), PADDLE_VERSION.split("."), strict=True)),
    },
}
"""Names of Paddle's modules that are here. Modules below a module are names of it, too."""


class ServedModule(ModuleType):
    """One of Paddle's modules. Asked for what is not here, it tells who asked."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing(f"{self.__name__}.{name}"))


def missing(name: str) -> str:
    """The message where ``name`` is not here."""
    module = name.rpartition(".")[0]
    while module not in SERVED:
        module = module.rpartition(".")[0]
    why = MODULE_NOT_HERE.get(name.rpartition(".")[2])
    told = f" ({why})" if why and module == "paddle.inference" else ""
    below = {each.removeprefix(f"{module}.").partition(".")[0] for each in SERVED if module in each}
    names = ", ".join(sorted({*SERVED[module], *below} - {module, "__version__"}))
    return (
        f"{name} is not here{told}, {asked_by()}; this paddle is onernn, which runs saved models,"
        f" and neither builds nor trains any; {module} has {names}"
    )
