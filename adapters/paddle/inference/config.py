"""`paddle.inference.Config`: which model, and how it is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any

from onernn.adapters.paddle.inference import data_types
from onernn.adapters.paddle.inference.options import ANSWERS, NO_EFFECT, NOT_HERE
from onernn.core.errors import UnsupportedError

_RECURRENT = frozenset("gru lstm rnn fusion_gru fusion_lstm multi_gru".split())
"""Operators that compute in bfloat16 here where `set_bfloat16_op` lets them."""


class AnalysisConfig:
    """Options as in Paddle 2.6.2, with its defaults: one thread, float32.

    ``AnalysisConfig(folder)``, ``AnalysisConfig(program, parameters)`` or a copy of another. What
    changes no result on a CPU is accepted; what asks for another device or engine raises
    `UnsupportedError`.
    """

    Precision = data_types.Precision
    Float32, Int8, Half, Bfloat16 = data_types.Precision
    __slots__ = (
        "_bfloat16",
        "_bfloat16_ops",
        "_buffers",
        "_by_name",
        "_files",
        "_folder",
        "_ir_optim",
        "_onednn",
        "_quiet",
        "_threads",
    )

    def __init__(self, model: str | AnalysisConfig = "", params: str | None = None) -> None:
        if isinstance(model, AnalysisConfig):
            for name in self.__slots__:
                setattr(self, name, getattr(model, name))
            return
        self._folder, self._files = "", ("", "")
        self._buffers: tuple[bytes, bytes] | None = None
        self._bfloat16, self._bfloat16_ops = False, frozenset[str]()
        self._by_name, self._ir_optim, self._onednn = False, True, True
        self._quiet, self._threads = False, 1
        self.set_model(model, params)

    def set_model(self, model: str, params: str | None = None) -> None:
        """A folder, or a program's file and its parameters'."""
        if params is None:
            self._folder = _path(model)
        else:
            self._files = _path(model), _path(params)

    def set_prog_file(self, file: str) -> None:
        self._files = _path(file), self._files[1]

    def set_params_file(self, file: str) -> None:
        self._files = self._files[0], _path(file)

    def set_model_buffer(
        self, program: bytes, program_size: int, params: bytes, params_size: int
    ) -> None:
        """A model that is in memory: what its two files would hold."""
        self._buffers = bytes(program[:program_size]), bytes(params[:params_size])

    def model_dir(self) -> str:
        return self._folder

    def prog_file(self) -> str:
        return self._files[0]

    def params_file(self) -> str:
        return self._files[1]

    def model_from_memory(self) -> bool:
        return self._buffers is not None

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        self._threads = int(threads)

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def enable_mkldnn(self) -> None:
        self._onednn = True

    def disable_mkldnn(self) -> None:
        self._onednn = False

    def mkldnn_enabled(self) -> bool:
        return self._onednn

    def enable_mkldnn_bfloat16(self) -> None:
        """Recurrent layers compute in bfloat16, as ``onernn.Session(model, dtype="bf16")``."""
        self._bfloat16 = True

    def set_bfloat16_op(self, operators: Set[str]) -> None:
        """Operators, by Paddle's names, that `enable_mkldnn_bfloat16` may change; none: all."""
        self._bfloat16_ops = frozenset(operators)

    def switch_specify_input_names(self, x: bool = True) -> None:
        """`PaddleTensor`s given to ``run`` are told apart by their names, not by position."""
        self._by_name = bool(x)

    def specify_input_name(self) -> bool:
        return self._by_name

    def switch_ir_optim(self, x: bool = True) -> None:
        self._ir_optim = bool(x)

    def ir_optim(self) -> bool:
        return self._ir_optim

    def disable_glog_info(self) -> None:
        self._quiet = True

    def glog_info_disabled(self) -> bool:
        return self._quiet

    def tensorrt_precision_mode(self) -> data_types.Precision:
        return data_types.Precision.Float32

    def summary(self) -> str:
        """A line an option that is honoured."""
        told = {
            "model_dir": self._folder,
            "model_file": self._files[0],
            "params_file": self._files[1],
            "model_from_memory": self.model_from_memory(),
            "cpu_math_thread": self._threads,
            "dtype": self.dtype,
        }
        width = max(map(len, told))
        return "\n".join(f"{name:{width}}  {value}" for name, value in told.items())

    @property
    def dtype(self) -> str:
        """How recurrent layers compute, by the names of `onernn.Session`."""
        ours = not self._bfloat16_ops or not _RECURRENT.isdisjoint(self._bfloat16_ops)
        return "bf16" if self._bfloat16 and self._onednn and ours else "f32"

    @property
    def buffers(self) -> tuple[bytes, bytes] | None:
        return self._buffers


def _path(given: str) -> str:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"Config: expected the path of a file or folder, got {given!r}")
    return os.fspath(given)


def _accepted(name: str, why: str) -> Callable[..., None]:
    def option(self: AnalysisConfig, *_: Any, **__: Any) -> None:
        pass

    option.__doc__ = f"Accepted, without effect: {why}."
    return _named(option, name)


def _refused(name: str, what: str) -> Callable[..., None]:
    def option(self: AnalysisConfig, *_: Any, **__: Any) -> None:
        raise UnsupportedError(
            f"Config.{name}: onernn runs on CPUs, without {what}; here are enable_mkldnn,"
            " enable_mkldnn_bfloat16 and set_cpu_math_library_num_threads"
        )

    option.__doc__ = f"Raises `UnsupportedError`: there are no {what} here."
    return _named(option, name)


def _answered(name: str, answer: Any) -> Callable[..., Any]:
    def option(self: AnalysisConfig) -> Any:
        return answer

    option.__doc__ = f"Always {answer!r}."
    return _named(option, name)


def _named(option: Callable[..., Any], name: str) -> Callable[..., Any]:
    option.__name__, option.__qualname__ = name, f"AnalysisConfig.{name}"
    return option


for _make, _table in ((_accepted, NO_EFFECT), (_refused, NOT_HERE), (_answered, ANSWERS)):
    for _name, _value in _table.items():
        setattr(AnalysisConfig, _name, _make(_name, _value))
