"""`paddle.inference` on this library: programs written for it run without Paddle.

``from onernn.adapters.paddle import inference as paddle_infer``, or `install`, after which
``import paddle`` finds this face. Names and behaviour are those of Paddle 2.6.2
(docs/reference/paddle_inference.md lists each).
"""

from __future__ import annotations

from typing import Any

from onernn.adapters.paddle.inference.config import MODULE_NOT_HERE
from onernn.adapters.paddle.inference.config import AnalysisConfig as Config
from onernn.adapters.paddle.inference.predictors import PaddleInferPredictor as Predictor
from onernn.adapters.paddle.inference.predictors import PredictorPool, create_predictor
from onernn.adapters.paddle.inference.served_modules import (
    get_trt_compile_version,
    get_trt_runtime_version,
    get_version,
    install,
)
from onernn.adapters.paddle.inference.tensors import PaddleDType as DataType
from onernn.adapters.paddle.inference.tensors import PaddleInferTensor as Tensor
from onernn.adapters.paddle.inference.tensors import PaddlePlace as PlaceType
from onernn.adapters.paddle.inference.tensors import Precision as PrecisionType
from onernn.adapters.paddle.inference.tensors import get_num_bytes_of_data_type

__all__ = [
    "Config",
    "DataType",
    "PlaceType",
    "PrecisionType",
    "Predictor",
    "PredictorPool",
    "Tensor",
    "create_predictor",
    "get_num_bytes_of_data_type",
    "get_trt_compile_version",
    "get_trt_runtime_version",
    "get_version",
    "install",
]


def __getattr__(name: str) -> Any:
    why = MODULE_NOT_HERE.get(name)
    reason = f"is not here: {why}" if why else "is no name of Paddle 2.6.2"
    raise AttributeError(f"paddle.inference.{name} {reason}")
