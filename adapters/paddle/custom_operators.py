"""Custom operators of Paddle that call the kernels, and programs of PIR that use them."""

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

# The operator ``onernn_rnn``: compiled against Paddle's own headers, once, and kept.
#
# What is compiled calls only the kernels' library, no Python. Its file lies in the user's cache
# folder under the hash of all that it was made from, and ends with the hash of its own bytes.

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
"""Of the operator in programs; ``rnn`` of Paddle computes the same."""
FEW = "batches of so few words are faster in Paddle's own kernel; backend='kernels' takes ours"
"""The reason of a layer that stays where `is_faster_in_paddle`."""


class NoOperators(UnsupportedError):
    """This process cannot have compiled operators; the message says why."""


@cache
def live_paddle() -> Any:
    """Paddle, for calls that `require` would take a part of."""
    return require("paddle", "paddle")


def register_operators() -> None:
    """Paddle knows the operator that `optimize` puts into programs of Paddle 3.

    The first call on a machine compiles it, in seconds. Raises `NoOperators` where there is no
    C++17 compiler, `LibraryError` for a damaged installation.
    """
    library()


def library() -> ctypes.CDLL:
    """Returns the compiled operators, registered; raises as `register_operators`."""
    with _LOCK:
        return _register()


@cache
def missing_operators() -> str:
    """Returns why this process has no compiled operators, "" where it has."""
    try:
        register_operators()
    except (NoOperators, LibraryError) as error:
        return str(error)
    return ""


def is_faster_in_paddle(mode: str, steps: int, sequences: int, units: int, is_test: bool) -> bool:
    """Returns whether Paddle's own kernel is known to be the faster one for such a batch.

    A size that a program leaves open is negative: any size may come there.
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
    """Returns the operator's attributes, in its order.

    ``fixed``: the weights never change, as in a predictor.

    Raises `UnsupportedError` for options that it has not.
    """
    threads = team_of(chosen.threads or usable_threads())
    return *_attributes(kind, time_major, is_test, chosen, fixed), threads


@cache
def _attributes(
    kind: LayerKind, time_major: bool, is_test: bool, chosen: Options, fixed: bool
) -> tuple[Any, ...]:
    """`arguments` but for the number of threads, which the environment may change."""
    if chosen.backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"layers in Paddle run on kernels; take backend='kernels', not {chosen.backend!r}"
        )
    if chosen.dtype not in STORED:
        raise UnsupportedError(
            f"layers in Paddle do not run in {chosen.dtype}; take f32, bf16 or f16"
        )
    if chosen.dtype == "f16" and not is_test:
        raise UnsupportedError("no training in f16; take bf16 or f32, or call eval() before")
    stored = getattr(load_kernels().lib, f"ONERNN_{chosen.dtype.upper()}")
    gates = list(RNN_CELLS[kind.mode][1].permutation)
    sizes = kind.layers, kind.directions == 2, kind.hidden_size
    return kind.mode, gates, *sizes, time_major, is_test, fixed, stored


@cache
def _register() -> ctypes.CDLL:
    paddle = require("paddle", "paddle")
    kernels = load_kernels()
    path = str(_library(paddle))
    # Not through paddle.utils.cpp_extension, which wants setuptools and warns about ccache.
    paddle.base.core.load_op_meta_info_and_register_op(path)
    result = ctypes.CDLL(path)
    if result.onernn_paddle_open(str(kernels.path).encode()):
        raise LibraryError(f"{kernels.path}: cannot be opened by {path}")
    if write := getattr(paddle.base.core, "serialize_pir_program", None):

        @wraps(write)
        def write_own(program: Any, *more: Any) -> None:
            """Writes Paddle's own operators in the place of ours: a file loads everywhere."""
            if _ours(program):
                program = program.clone()
                restore_recurrent(program)
            write(program, *more)

        paddle.base.core.serialize_pir_program = write_own
    return result


def _library(paddle: Any) -> Path:
    """Returns its file, compiled now or before; in memory where the cache folder cannot be used."""
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
    """Returns the library, with its hash behind what the loader reads."""
    try:
        command = build.compiler()
    except build.NoCompiler as error:
        raise NoOperators(
            "layers in Paddle need an operator that is compiled here once: install g++ or"
            f" clang++, or set CXX; {error}"
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


# Programs of PIR, Paddle 3's own, changed where they stand: ``rnn`` becomes our operator.
#
# A value of a PIR program has no name; its builder holds it, and fetches by it. So nothing but
# ``rnn`` and its gradient is replaced, and no ``rnn`` whose results the builder may hold.

# Operands and results of `rnn` and `rnn_grad` (paddle/phi/ops/yaml/ops.yaml, backward.yaml).
_X, _STATE, _WEIGHTS, _LENGTHS = range(4)
_OUT, _, _AFTER, _RESERVE = range(4)
_GRAD_RESERVE, _DY, _DAFTER = 6, 7, 8
_DX, _DSTATE, _DWEIGHTS = range(3)
_OF_LOD = frozenset(f"pd_op.{name}" for name in ("gru", "lstm", "fusion_gru", "fusion_lstm"))

_OF_BACKWARD = {"pd_op.rnn_grad", "pd_op.full_like", "builtin.combine"}
"""What appending gradients puts behind a result."""


class Replaced(NamedTuple):
    """The replaced operators of a program, and the values that replaced others."""

    explained: Explained
    values: tuple[tuple[Any, Any], ...]

    def value(self, old: Any) -> Any:
        """Returns what stands in the place of this value now."""
        return next((new for before, new in self.values if before.is_same(old)), old)


def log_replaced(lines: Iterable[str], refusals: Iterable[Refusal]) -> Explained:
    """Logs what was replaced in a program, and what was not.

    Raises `UnsupportedError` where nothing can be replaced; what is only faster in Paddle could be.
    """
    done = Explained(tuple(lines), tuple(refusals))
    warn_of_left(HOST, done.refusals)
    for line in done.replaced:
        _log.info("%s", line)
    if not done.is_possible:
        none = "" if done.refusals else " it holds none; onernn.Session runs loops of cells"
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
    """Replaces each ``rnn`` that can be replaced, in place, also in inner blocks.

    ``fetched``: values that the caller holds; ``all_known``: there are no others, or they are
    exchanged by `Replaced.value`; ``fixed``: parameters never change. Raises as `log_replaced`.
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
    """Puts the operator into the program that is being made, or runs it where none is.

    ``inputs``: x, the initial states, WeightList; ``attributes``: from `arguments`. Results: the
    output and the final states, one by one.
    """
    paddle = live_paddle()
    run = getattr(paddle._C_ops, "_run_custom_op", None) or paddle.base.core.eager._run_custom_op
    out, states, _ = run(NAME, [*inputs], lengths, *attributes)
    return out, tuple(paddle._C_ops.unbind(states, 0))


def _recurrent(block: Any, is_inner: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yields the recurrent operators of a block, and of inner ones; whether they stand in an inner
    one.
    """
    for op in block.ops:
        if op.name() == "pd_op.rnn" or op.name() in _OF_LOD or op.name().endswith(f".{NAME}"):
            yield op, is_inner
        for inner in op.blocks():
            yield from _recurrent(inner, True)


def _arguments(op: Any, chosen: Options, fixed: bool) -> tuple[Any, ...]:
    """Our operator's attributes. Raises `UnsupportedError` where it cannot replace this one."""
    if op.name() in _OF_LOD:
        raise UnsupportedError("it reads a LoD, which PIR has not; FLAGS_enable_pir_api=0 has")
    attrs, float32 = op.attrs(), require("paddle", "paddle").float32
    mode, layers, two = attrs["mode"], attrs["num_layers"], attrs["is_bidirec"]
    weights = _list_values(op.operand_source(_WEIGHTS))
    read = [op.operand_source(_X), *_list_values(op.operand_source(_STATE)), *weights]
    if kinds := [each.dtype for each in read if each.dtype != float32]:
        raise UnsupportedError(f"it reads {kinds[0]}, ours reads {float32}")
    if mode not in RNN_CELLS or len(weights) != 4 * layers * (1 + two):
        raise UnsupportedError(f"{mode} with {len(weights)} weights; a bias is left out?")
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
    """Returns the values in an operand. Raises `UnsupportedError` where the program does not list
    them.
    """
    maker = vector.get_defining_op()
    if maker is None or maker.name() != "builtin.combine":
        raise UnsupportedError("one of its lists of tensors comes from outside of its block")
    return list(maker.operands_source())


def _gradients(op: Any) -> list[Any]:
    """Returns its ``rnn_grad``s. Raises `UnsupportedError` where they stand in another block."""
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
    """Raises `UnsupportedError` where the caller fetches a result of operators that go.

    It cannot where only a batch-first layer's own operators read the result.
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
                "its own result may be fetched: name in fetch_list what will be, paddle.assign() of"
                " this one where it is among that"
            )


def _replace(
    program: Any, op: Any, gradients: Sequence[Any], attributes: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Replaces it by our operator; gives its old result and the new one."""
    paddle, pir = require("paddle", "paddle"), require("paddle.base.libpaddle", "paddle").pir
    ops = require("paddle._C_ops", "paddle")
    state, weights = (_list_values(op.operand_source(at)) for at in (_STATE, _WEIGHTS))
    inputs = [op.operand_source(_X), *state, *weights]
    lengths = op.operand_source(_LENGTHS)
    before = op.result(_OUT)
    with _static(paddle), paddle.static.program_guard(program):
        pir.set_insertion_point(op)
        out, after = append_operator(inputs, lengths if lengths.initialized() else None, attributes)
        # The list that `unbind` makes, not one made of its parts, through which no gradient goes.
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
    for old in (*gradients, op):
        old.get_parent_block().remove_op(old)
    return before, out


def _exchange(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Makes the readers of each old value read the new one."""
    for old, new in pairs:
        new.stop_gradient = old.stop_gradient
        old.replace_all_uses_with(new)


def restore_recurrent(program: Any) -> Replaced:
    """Each of our operators in a program is Paddle's ``rnn`` again, in place, in inner blocks, too.

    Raises `UnsupportedError` for one that is trained in an inner block.
    """
    return Replaced(Explained((), ()), tuple(_restore(program, *each) for each in _ours(program)))


def _ours(program: Any) -> list[tuple[Any, list[Any]]]:
    """Our operators in a program, and those of their gradients. Raises as `restore_recurrent`."""
    result = []
    for op, _ in _recurrent(program.global_block()):
        if op.name().endswith(f".{NAME}"):
            result.append((op, op.result(2).all_used_ops()))
            if not all(each.name().endswith(f".{NAME}_grad") for each in result[-1][1]):
                raise UnsupportedError(
                    f"{NAME} is trained in an inner block (while, cond), where it stays: save or"
                    " clone the program before optimize"
                )
    return result


def _restore(program: Any, op: Any, gradients: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the inverse of `_replace`."""
    paddle, pir = require("paddle", "paddle"), require("paddle.base.libpaddle", "paddle").pir
    ops = require("paddle._C_ops", "paddle")
    attrs, lengths, (before, ends, _) = op.attrs(), op.operand_source(1), op.results()

    def turn(value: Any) -> Any:
        return value if attrs["time_major"] else ops.transpose(value, [1, 0, 2])

    mode, x, *others = attrs["mode"], *_list_values(op.operand_source(0))
    count = len(RNN_CELLS[mode][0].states)
    sizes = x.shape[-1], attrs["hidden_size"], attrs["num_layers"], mode
    with _static(paddle), paddle.static.program_guard(program):
        pir.set_insertion_point(op)
        inputs = [[turn(x)], others[:count], others[count:]]
        drawn = ops.full([0], 0.0, paddle.uint8, paddle.CPUPlace())  # dropout, which ours has not
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
    for old in (*gradients, op):
        old.get_parent_block().remove_op(old)
    return before, out


@contextmanager
def _static(paddle: Any) -> Iterator[None]:
    """Operators go into programs, whatever the caller's mode is."""
    if not paddle.in_dynamic_mode():
        yield
        return
    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()
