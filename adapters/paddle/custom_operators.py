"""Compiles Paddle operators that call onernn's kernels, and inserts them into PIR programs."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, wraps
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from onernn.adapters.common import gain
from onernn.adapters.common.adapter import require
from onernn.adapters.common.live import Explained, Slower, warn_of_left
from onernn.adapters.paddle.partition import LayerKind, Options
from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.packing import STORED
from onernn.backend.onednn.library import keep, memory_file
from onernn.backend.process import team_of, usable_threads
from onernn.ir.errors import LibraryError, Refusal, UnsupportedError
from onernn.kernels import build
from onernn.reorders.paddle import RNN_CELLS

# The operator ``onernn_rnn`` is compiled once against Paddle's headers.
#
# It calls only the kernels' library, not Python. The operator's file is in the user's cache folder.
# The file's name contains the hash of all sources, and the file ends with the hash of its content.

_SOURCES = (
    "custom_operator.cpp",
    *("failures.hpp", "packed_layer.hpp", "program_part.hpp", "recurrent_layer.hpp"),
)
_FLAGS = (
    *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wl,--as-needed", "-Wl,-z,defs"),
)
_LIBRARIES = ("libs/libphi_core.so", "libs/libphi.so", "libs/libcommon.so", "base/libpaddle.so")
_HASH = 32
_LOCK = Lock()
_log = logging.getLogger("onernn")

HOST = "Paddle"
NAME = "onernn_rnn"
"""The name of onernn's operator in programs. It computes the same as Paddle's ``rnn``."""
FEW = "Paddle's own kernel runs so few steps at least as fast; backend='kernels' replaces it"
"""The reason why Paddle runs a layer if `is_faster_in_paddle` is true."""


class NoOperators(UnsupportedError):
    """Raised if the operators cannot be compiled. The message states the reason."""


@cache
def import_paddle() -> Any:
    """Returns the module paddle. Raises `MissingDependencyError` if it is missing."""
    return require("paddle", "paddle")


def register_operators() -> ctypes.CDLL:
    """Registers onernn's operators in Paddle. Returns their library.

    The first call on a machine compiles the library, which takes seconds. Raises `NoOperators` if
    there is no C++17 compiler, `LibraryError` for a damaged installation.
    """
    with _LOCK:
        return _register()


@cache
def missing_operators() -> str:
    """Returns the reason why this process has no compiled operators, "" if it has them."""
    try:
        register_operators()
    except (NoOperators, LibraryError) as error:
        return str(error)
    return ""


def is_faster_in_paddle(mode: str, steps: int, sequences: int, units: int, is_test: bool) -> bool:
    """Returns whether Paddle's own kernel is known to be faster for a batch of these sizes.

    A size that is dynamic in the program is negative.
    """
    return steps > 0 < sequences and not gain.is_faster(
        _case(mode, is_test), steps, sequences, units
    )


@cache
def _case(mode: str, is_test: bool) -> str:
    return f"paddle {mode.partition('_')[0]}{'' if is_test else ' trained'}"


def arguments(
    kind: LayerKind, *, time_major: bool, is_test: bool, chosen: Options, fixed: bool = False
) -> tuple[Any, ...]:
    """Returns the attributes of ``onernn_rnn`` in order.

    ``fixed``: whether the weights never change, for example in a predictor.

    Raises `UnsupportedError` for options that the operator does not support.
    """
    threads = team_of(chosen.threads or usable_threads())
    return *_attributes(kind, time_major, is_test, chosen, fixed), threads


@cache
def _attributes(
    kind: LayerKind, time_major: bool, is_test: bool, chosen: Options, fixed: bool
) -> tuple[Any, ...]:
    """Returns `arguments` without the number of threads, which the environment may change."""
    if chosen.backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend={chosen.backend!r}: expected 'auto' or 'kernels' for layers in Paddle"
        )
    if chosen.dtype not in STORED:
        raise UnsupportedError(
            f"dtype={chosen.dtype!r}: expected 'f32', 'bf16' or 'f16' for layers in Paddle"
        )
    if chosen.dtype == "f16" and not is_test:
        raise UnsupportedError(
            "dtype='f16': expected 'bf16' or 'f32' for training; call eval() first for inference"
        )
    stored = getattr(load_kernels().lib, f"ONERNN_{chosen.dtype.upper()}")
    gates = list(RNN_CELLS[kind.mode][1].permutation)
    sizes = kind.layers, kind.directions == 2, kind.hidden_size
    return kind.mode, gates, *sizes, time_major, is_test, fixed, stored


@cache
def _register() -> ctypes.CDLL:
    paddle = import_paddle()
    kernels = load_kernels()
    path = str(_library(paddle))
    # paddle.utils.cpp_extension is not used: it needs setuptools and warns about ccache.
    paddle.base.core.load_op_meta_info_and_register_op(path)
    result = ctypes.CDLL(path)
    if result.onernn_paddle_open(str(kernels.path).encode()):
        raise LibraryError(f"{kernels.path}: cannot be opened by {path}")
    if write := getattr(paddle.base.core, "serialize_pir_program", None):

        @wraps(write)
        def write_own(program: Any, *more: Any) -> None:
            """Writes Paddle's own operators in place of onernn's, so that the file loads
            everywhere.
            """
            if _ours(program):
                program = program.clone()
                restore_recurrent(program)
            write(program, *more)

        paddle.base.core.serialize_pir_program = write_own
    return result


def _library(paddle: Any) -> Path:
    """Returns the library's file, and compiles it if needed. The file is in memory if the cache
    folder cannot be used.
    """
    folder = files("onernn.adapters.paddle")
    sources = {name: folder.joinpath(name).read_bytes() for name in _SOURCES}
    shared = *build.HEADERS, *(build.HERE / name for name in ("stored.hpp", "isa.hpp"))
    sources |= {header.name: header.read_bytes() for header in shared}
    key = (paddle.version.full_version, paddle.version.commit, _FLAGS, build.isas(), sources)
    name = f"paddle-{hashlib.sha256(repr(key).encode()).hexdigest()}.so"
    compiled = partial(_compile, Path(paddle.__file__).parent, paddle.__version__, sources)
    content = b""
    try:
        file = build.cache_folder() / name
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content[:-_HASH]).digest() != content[-_HASH:]:
            content = compiled()
            keep(file, [content])
        ctypes.CDLL(str(file))
    except OSError:  # the folder cannot be used, or is mounted noexec
        return memory_file(name[:20], [content or compiled()])
    return file


def _compile(paddle: Path, version: str, sources: dict[str, bytes]) -> bytes:
    """Returns the library's bytes, followed by their hash, which the loader ignores."""
    try:
        command = build.compiler()
    except build.NoCompiler as error:
        raise NoOperators(
            "layers in Paddle need an operator that onernn compiles once: install g++ or clang++,"
            f" or set CXX; {error}"
        ) from None
    headers = paddle / "include"
    includes = ["-I.", *(f"-isystem{each}" for each in (headers, headers / "third_party"))]
    libraries = [str(file) for each in _LIBRARIES if (file := paddle / each).is_file()]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_bytes(text)
        major = 2 if version.startswith("2.") else 3
        defines = f"-DONERNN_ABI={build.abi()}u", f"-DONERNN_PADDLE={major}"
        options = [*_FLAGS, *defines, *includes, _SOURCES[0], *libraries]
        process = subprocess.run(
            [*command, *options, "-o", "made.so"], cwd=folder, capture_output=True, check=False
        )
        if process.returncode:
            errors = [
                line
                for line in process.stderr.decode(errors="replace").splitlines()
                if "error" in line
            ]
            raise NoOperators(
                f"the operator does not compile against Paddle's headers in {headers}:"
                f" {'; '.join(errors[:3])[:600]}"
            )
        content = (Path(folder) / "made.so").read_bytes()
    return content + hashlib.sha256(content).digest()


# Programs of PIR, Paddle 3's own format, are changed in place: ``rnn`` becomes onernn's operator.
#
# A value of a PIR program has no name, so callers fetch by value objects. Only ``rnn`` and its
# gradient are therefore replaced, and only if no caller can hold results of this ``rnn``.

# Operands and results of `rnn` and `rnn_grad` (paddle/phi/ops/yaml/ops.yaml, backward.yaml).
_X, _STATE, _WEIGHTS, _LENGTHS = range(4)
_OUT, _, _AFTER, _RESERVE = range(4)
_GRAD_RESERVE, _DY, _DAFTER = 6, 7, 8
_DX, _DSTATE, _DWEIGHTS = range(3)
_OF_LOD = frozenset(f"pd_op.{name}" for name in ("gru", "lstm", "fusion_gru", "fusion_lstm"))

_OF_BACKWARD = {"pd_op.rnn_grad", "pd_op.full_like", "builtin.combine"}
"""Operators that read results of ``rnn`` only to compute gradients."""


class Replaced(NamedTuple):
    """The replaced operators of a program. ``values``: pairs of an old and a new value."""

    explained: Explained
    values: tuple[tuple[Any, Any], ...]

    def value(self, old: Any) -> Any:
        """Returns the new value for an old one, or the old one if it was not replaced."""
        return next((new for before, new in self.values if before.is_same(old)), old)


def log_replaced(lines: Iterable[str], refusals: Iterable[Refusal]) -> Explained:
    """Logs the operators of a program that were replaced, and those that were not.

    Raises `UnsupportedError` if no operator can be replaced. An operator that stays only because
    Paddle is faster counts as replaceable.
    """
    done = Explained(tuple(lines), tuple(refusals))
    warn_of_left(HOST, done.refusals)
    for line in done.replaced:
        _log.info("%s", line)
    if not done.is_possible:
        none = "" if done.refusals else " there is none; run loops of cells in onernn.Session"
        raise UnsupportedError(f"no recurrent operator can be replaced:{none}", done.refusals)
    return done


def is_pir(target: Any) -> bool:
    """Returns whether this is a program of PIR."""
    return type(target).__module__.startswith("paddle.base.libpaddle.pir")


def replace_recurrent(
    program: Any,
    chosen: Options,
    fetched: Sequence[Any] = (),
    *,
    all_known: bool = False,
    fixed: bool = False,
) -> Replaced:
    """Replaces in place each ``rnn`` that onernn can run, also in inner blocks.

    ``fetched``: values that the caller fetches. ``all_known``: whether the caller fetches no
    further values, or replaces them by `Replaced.value`. ``fixed``: whether parameters never
    change. Raises the same errors as `log_replaced`.
    """
    block = program.global_block()
    known = all_known or fetched or any(op.name() == "pd_op.fetch" for op in block.ops)
    lines: list[str] = []
    refusals: list[Refusal] = []
    values: list[tuple[Any, Any]] = []
    for op, is_inner in [*_recurrent(block)]:
        if op.name().endswith(NAME):
            lines.append(f"operator {NAME}, already")
            continue
        label = f"{op.attrs().get('struct_name', '')} ({op.name().removeprefix('pd_op.')})".strip()
        try:
            attributes = _arguments(op, chosen, fixed)
            gradients = _gradients(op)
            if not (is_inner or all_known):
                _check_fetched(op, gradients, bool(known), fetched)
            register_operators()
        except UnsupportedError as error:
            refusals.append(replace(error.refusal, where=label))
            continue
        lines.append(f"{label}: {attributes[0]}, {chosen.dtype}, operator {NAME}")
        values.append(_replace(program, op, gradients, attributes))
    return Replaced(log_replaced(lines, refusals), tuple(values))


def append_operator(
    inputs: Sequence[Any], lengths: Any, attributes: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Adds the operator to the program under construction, or runs it if there is none.

    ``inputs``: x, the initial states, WeightList; ``attributes``: from `arguments`. Returns the
    output and a tuple of the final states.
    """
    paddle = import_paddle()
    run = getattr(paddle._C_ops, "_run_custom_op", None) or paddle.base.core.eager._run_custom_op
    out, states, _ = run(NAME, [*inputs], lengths, *attributes)
    return out, tuple(paddle._C_ops.unbind(states, 0))


def _recurrent(block: Any, is_inner: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yields each recurrent operator of a block, and whether it is in an inner block."""
    for op in block.ops:
        if op.name() == "pd_op.rnn" or op.name() in _OF_LOD or op.name().endswith(f".{NAME}"):
            yield op, is_inner
        for inner in op.blocks():
            yield from _recurrent(inner, True)


def _arguments(op: Any, chosen: Options, fixed: bool) -> tuple[Any, ...]:
    """Returns the attributes of onernn's operator. Raises `UnsupportedError` if it cannot replace
    ``op``.
    """
    if op.name() in _OF_LOD:
        raise UnsupportedError("it reads a LoD, which PIR lacks; set FLAGS_enable_pir_api=0")
    attrs, float32 = op.attrs(), import_paddle().float32
    mode, layers, two = attrs["mode"], attrs["num_layers"], attrs["is_bidirec"]
    weights = _list_values(op.operand_source(_WEIGHTS))
    read = [op.operand_source(_X), *_list_values(op.operand_source(_STATE)), *weights]
    if kinds := [each.dtype for each in read if each.dtype != float32]:
        raise UnsupportedError(f"expected {float32}, got {kinds[0]}; cast its inputs and weights")
    if mode not in RNN_CELLS or len(weights) != 4 * layers * (1 + two):
        raise UnsupportedError(
            f"{mode}: expected one of {', '.join(RNN_CELLS)}, and {4 * layers * (1 + two)} weights,"
            f" got {len(weights)}; create the layer with all biases"
        )
    if attrs["dropout_prob"] and layers > 1 and not attrs["is_test"]:
        raise UnsupportedError(
            "dropout between its layers is drawn in training; for inference call the layer's eval()"
            " before the program is made"
        )
    kind = LayerKind(mode, read[0].shape[-1], attrs["hidden_size"], layers, 1 + two)
    test = attrs["is_test"]
    whole = not op.operand_source(_LENGTHS).initialized()
    if chosen.may_leave and whole and not fixed:
        steps, sequences, _ = read[0].shape
        if is_faster_in_paddle(mode, steps, sequences, kind.hidden_size, test):
            raise UnsupportedError(FEW, [Slower(FEW)])
    return arguments(kind, time_major=True, is_test=test, chosen=chosen, fixed=fixed)


def _list_values(vector: Any) -> list[Any]:
    """Returns the values of a vector operand. Raises `UnsupportedError` if no builtin.combine makes
    it.
    """
    maker = vector.get_defining_op()
    if maker is None or maker.name() != "builtin.combine":
        raise UnsupportedError(
            "states and weights: expected lists of builtin.combine in the operator's own block"
        )
    return list(maker.operands_source())


def _gradients(op: Any) -> list[Any]:
    """Returns the ``rnn_grad`` operators of an ``rnn``. Raises `UnsupportedError` if they are in
    another block.
    """
    reserve = op.result(_RESERVE)
    result = [
        each
        for each in op.get_parent_block().ops
        if each.name() == "pd_op.rnn_grad" and each.operand_source(_GRAD_RESERVE).is_same(reserve)
    ]
    if len(result) < len(reserve.all_used_ops()):
        raise UnsupportedError(
            "it is trained in an inner block (while, cond); optimize the program before its"
            " gradients are appended, or the paddle.nn.Layer"
        )
    return result


def _check_fetched(op: Any, gradients: Sequence[Any], known: bool, fetched: Sequence[Any]) -> None:
    """Raises `UnsupportedError` if the caller may fetch a result of the removed operators.

    A batch-first layer returns only a transposed copy of this result, so the caller cannot hold the
    result itself.
    """
    layer = op.attrs().get("struct_name")
    for result in (op.result(_OUT), *(each.result(_DX) for each in gradients)):
        if not result.initialized():
            continue
        if any(each.is_same(result) for each in fetched if each is not None):
            raise UnsupportedError("its own result is fetched; fetch paddle.assign() of it")
        users = result.all_used_ops()
        transposes = [each for each in users if each.name().startswith("pd_op.transpose")]
        inside = all(
            each.name() == "pd_op.transpose_grad"
            or layer
            and each.attrs().get("struct_name") == layer
            for each in transposes
        )
        others = {each.name() for each in users if each not in transposes} - _OF_BACKWARD
        if not known and (not transposes or not inside or others):
            raise UnsupportedError(
                "its own result may be fetched; pass all values to fetch as fetch_list, and"
                " paddle.assign() of this result in place of the result"
            )


def _replace(
    program: Any, op: Any, gradients: Sequence[Any], attributes: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Replaces an ``rnn`` by onernn's operator. Returns the old and the new result."""
    paddle = import_paddle()
    ops = paddle._C_ops
    state, weights = (_list_values(op.operand_source(at)) for at in (_STATE, _WEIGHTS))
    inputs = [op.operand_source(_X), *state, *weights]
    lengths = op.operand_source(_LENGTHS)
    before = op.result(_OUT)
    with _replacing(program, (*gradients, op)) as pir:
        out, after = append_operator(inputs, lengths if lengths.initialized() else None, attributes)
        # Use the vector that `unbind` returns. A vector combined from its parts would pass no
        # gradient.
        states = after[0].get_defining_op().operand_source(0)
        _exchange([(before, out), (op.result(_AFTER), states)])
        for gradient in gradients:
            pir.set_insertion_point(gradient)
            dafter = ops.stack(_list_values(gradient.operand_source(_DAFTER)), 0)
            (grads, _) = paddle.framework.core.call_vjp(
                out.get_defining_op(),
                [inputs, [lengths]],
                [[each] for each in out.get_defining_op().results()],
                [[gradient.operand_source(_DY)], [dafter], [pir.fake_value()]],
                [[False] * len(inputs), [True]],
            )
            first = 1 + len(state)
            if gradient.result(_DX).initialized():
                gradient.result(_DX).replace_all_uses_with(grads[0])
            for at, result in ((_DSTATE, grads[1:first]), (_DWEIGHTS, grads[first:])):
                if gradient.result(at).initialized():
                    gradient.result(at).replace_all_uses_with(ops.builtin_combine(result))
    return before, out


def _exchange(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Makes the readers of each old value read the new one."""
    for old, new in pairs:
        new.stop_gradient = old.stop_gradient
        old.replace_all_uses_with(new)


def restore_recurrent(program: Any) -> Replaced:
    """Replaces each of onernn's operators by Paddle's ``rnn``, also in inner blocks.

    Raises `UnsupportedError` for an operator that is trained in an inner block.
    """
    return Replaced(Explained((), ()), tuple(_restore(program, *each) for each in _ours(program)))


def _ours(program: Any) -> list[tuple[Any, list[Any]]]:
    """Lists onernn's operators in a program, each with its gradient operators. Raises the same
    errors as `restore_recurrent`.
    """
    result = []
    for op, _ in _recurrent(program.global_block()):
        if op.name().endswith(f".{NAME}"):
            result.append((op, op.result(2).all_used_ops()))
            if not all(each.name().endswith(f".{NAME}_grad") for each in result[-1][1]):
                raise UnsupportedError(
                    f"{NAME} is trained in an inner block (while, cond), and stays there; save or"
                    " clone the program before optimize"
                )
    return result


def _restore(program: Any, op: Any, gradients: Sequence[Any]) -> tuple[Any, Any]:
    """Replaces an operator of onernn by Paddle's ``rnn``, the reverse of `_replace`."""
    paddle = import_paddle()
    ops = paddle._C_ops
    attrs, lengths, (before, ends, _) = op.attrs(), op.operand_source(1), op.results()

    def turn(value: Any) -> Any:
        return value if attrs["time_major"] else ops.transpose(value, [1, 0, 2])

    mode, x, *others = attrs["mode"], *_list_values(op.operand_source(0))
    count = len(RNN_CELLS[mode][0].states)
    sizes = x.shape[-1], attrs["hidden_size"], attrs["num_layers"], mode
    with _replacing(program, (*gradients, op)) as pir:
        inputs = [[turn(x)], others[:count], others[count:]]
        drawn = ops.full([0], 0.0, paddle.uint8, paddle.CPUPlace())  # the dropout state
        optional = lengths if lengths.initialized() else None
        more = drawn, 0.0, attrs["is_bidirec"], *sizes, 0, attrs["is_test"]
        y, _, after = ops.rnn(*inputs[0], *inputs[1:], optional, *more)
        rnn, out = y.get_defining_op(), turn(y)
        _exchange([(before, out), (ends, ops.stack(after, 0))])
        for gradient in gradients:
            pir.set_insertion_point(gradient)
            *_, dy, dafter = gradient.operands_source()
            none = [pir.fake_value()]
            (dx,), dstate, dweights, *_ = paddle.framework.core.call_vjp(
                rnn,
                [*inputs, [lengths], [drawn]],
                [[each] for each in rnn.results()],
                [[turn(dy)], none, ops.unbind(dafter, 0), none],
                [*([False] * len(each) for each in inputs), [True], [True]],
            )
            grads = ops.builtin_combine([turn(dx), *dstate, *dweights])
            gradient.result(0).replace_all_uses_with(grads)
    return before, out


@contextmanager
def _replacing(program: Any, operators: Sequence[Any]) -> Iterator[Any]:
    """Adds the operators that are created in this context to a program before the last of
    ``operators``, then removes ``operators``. Yields Paddle's module of PIR.
    """
    paddle = import_paddle()
    pir = paddle.base.libpaddle.pir
    is_dynamic = paddle.in_dynamic_mode()
    if is_dynamic:  # in paddle.jit.save the mode is static already
        paddle.enable_static()
    try:
        with paddle.static.program_guard(program):
            pir.set_insertion_point(operators[-1])
            yield pir
    finally:
        if is_dynamic:
            paddle.disable_static()
    for old in operators:
        old.get_parent_block().remove_op(old)
