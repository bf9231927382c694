"""Paddle Inference's interface beside Paddle 2.6.2's own: its names, and what its calls give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.inference
import pytest
from support.paddle_names import public_names

from onernn import recording
from onernn.adapters.paddle import inference
from onernn.adapters.paddle.inference import predictors, tensors

CORE = paddle.base.core
LETTERS = np.arange(1, 8)
LOD = [[0, 3, 7]]


def test_each_public_name_of_paddle_inference_is_told_of() -> None:
    theirs = {n for n in dir(paddle.inference) if n[:2] != "__" and n != "wrapper"}
    for owner in ("Config", "Predictor", "PredictorPool", "Tensor"):
        members = dir(getattr(paddle.inference, owner))
        theirs |= {f"{owner}.{name}" for name in members if name[0] != "_"}
    told = public_names()
    assert set(told) == theirs
    for name, (here, _) in told.items():
        owner, _, member = name.rpartition(".")
        found = getattr(inference, owner) if owner else inference
        assert hasattr(found, member) is (here != "not here" or bool(owner)), name


@pytest.mark.parametrize("name", ["DataType", "PrecisionType", "PlaceType"])
def test_enumerations_have_its_names_and_numbers(name: str) -> None:
    ours, theirs = getattr(inference, name), getattr(paddle.inference, name)
    assert {n: int(v) for n, v in ours.__members__.items()} == {
        n: int(v) for n, v in theirs.__members__.items()
    }
    for each in ours:
        assert str(each) == str(theirs(int(each))) and repr(each) == repr(theirs(int(each)))


class Face(NamedTuple):
    """One of both: Paddle's interface, or ours."""

    api: Any
    tensor: Any
    buffer: Any
    create: Any
    lod_tensor: Any

    def config(self, model: Path) -> Any:
        made = self.api.Config(f"{model}.pdmodel", f"{model}.pdiparams")
        made.disable_glog_info()
        return made


OURS = Face(
    inference,
    tensors.PaddleTensor,
    tensors.PaddleBuf,
    predictors.create_paddle_predictor,
    tensors.create_lod_tensor,
)
THEIRS = Face(
    paddle.inference,
    CORE.PaddleTensor,
    CORE.PaddleBuf,
    CORE.create_paddle_predictor,
    paddle.base.create_lod_tensor,
)


@pytest.fixture(scope="module")
def model(repo: Path) -> Path:
    return repo / "examples" / "segmenter" / "model"


def ran(face: Face, predictor: Any) -> list[Any]:
    predictor.run()
    handles = [predictor.get_output_handle(name) for name in predictor.get_output_names()]
    return [(each.copy_to_cpu(), each.lod(), each.shape(), int(each.type())) for each in handles]


def of_handle(do: Callable[[Any], Any]) -> Callable[[Face, Path], Any]:
    """What the input handle of a new predictor tells, and what ``do`` gave."""

    def run(face: Face, model: Path) -> Any:
        predictor = face.api.create_predictor(face.config(model))
        handle = predictor.get_input_handle("letters")
        given = do(handle)
        return given, handle.shape(), handle.lod(), int(handle.type()), handle.copy_to_cpu()

    return run


def copied(dtype: str) -> Callable[[Any], Any]:
    return lambda handle: handle.copy_from_cpu(LETTERS.astype(dtype))


def in_order(face: Face, model: Path) -> Any:
    handle = (predictor := face.api.create_predictor(face.config(model))).get_input_handle(
        "letters"
    )
    handle.reshape([7])
    handle.copy_from_cpu(LETTERS)
    handle.set_lod(LOD)
    first = ran(face, predictor)
    handle.copy_from_cpu(LETTERS[::-1].astype(np.int32))
    return first, ran(face, predictor), ran_by_clone(face, predictor)


def ran_by_clone(face: Face, predictor: Any) -> Any:
    again = predictor.clone()
    handle = again.get_input_handle("letters")
    before = handle.shape(), handle.lod()
    handle.copy_from_cpu(LETTERS[:4])
    handle.set_lod([[0, 1, 4]])
    return before, ran(face, again)


def pooled(face: Face, model: Path) -> Any:
    pool = face.api.PredictorPool(face.config(model), 2)
    return pool.retrive(1).get_input_names(), pool.retrive(2)


def legacy(face: Face, model: Path) -> Any:
    predictor = face.create(face.config(model))
    tensor = face.tensor(LETTERS)
    tensor.lod = LOD
    found = predictor.run([tensor])
    return (
        predictor.get_input_names(),
        predictor.get_input_tensor_shape(),
        [(each.name, each.shape, each.lod, int(each.dtype), each.as_ndarray()) for each in found],
        found[1].data.int64_data(),
        found[1].data.length(),
    )


def zero_copy(face: Face, model: Path) -> Any:
    predictor = face.create(face.config(model))
    handle = predictor.get_input_tensor("letters")
    handle.copy_from_cpu(LETTERS)
    handle.set_lod(LOD)
    done = predictor.zero_copy_run()
    output = predictor.get_output_tensor(predictor.get_output_names()[1])
    return done, output.copy_to_cpu(), output.lod(), output.shape()


def in_memory(face: Face, model: Path) -> Any:
    parts = [Path(f"{model}.{suffix}").read_bytes() for suffix in ("pdmodel", "pdiparams")]
    config = face.api.Config()
    config.disable_glog_info()
    config.set_model_buffer(parts[0], len(parts[0]), parts[1], len(parts[1]))
    return config.model_from_memory(), face.api.create_predictor(config).get_output_names()


def tensor_of(*arguments: Any, **named: Any) -> Callable[[Face, Path], Any]:
    def run(face: Face, model: Path) -> Any:
        made = face.tensor(*arguments, **named)
        return (
            made.name,
            made.shape,
            made.lod,
            int(made.dtype),
            made.data.length(),
            made.as_ndarray(),
        )

    return run


def options(face: Face, model: Path) -> Any:
    config, told = face.config(model), []
    questions = (
        "cpu_math_library_num_threads glog_info_disabled ir_optim mkldnn_enabled model_dir"
        " model_from_memory params_file prog_file specify_input_name use_feed_fetch_ops_enabled"
    ).split()
    for change in (
        lambda: None,
        lambda: config.switch_ir_optim(False),
        lambda: config.switch_use_feed_fetch_ops(True),
        lambda: config.switch_specify_input_names(),
        lambda: config.set_cpu_math_library_num_threads(4),
        lambda: config.disable_mkldnn(),
        lambda: config.set_model("/folder"),
        lambda: config.set_model("/a", "/b"),
        lambda: config.set_prog_file("/c"),
    ):
        change()
        told.append([getattr(config, name)() for name in questions])
    return told


CASES: dict[str, Callable[[Face, Path], Any]] = {
    "names": lambda f, m: (p := f.api.create_predictor(f.config(m))).get_input_names()
    + p.get_output_names(),
    "runs in order": in_order,
    "pool": pooled,
    "no pool": lambda f, m: f.api.PredictorPool(f.config(m), 0),
    "legacy": legacy,
    "zero copy": zero_copy,
    "in memory": in_memory,
    "options": options,
    "shrink": lambda f, m: f.api.create_predictor(f.config(m)).try_shrink_memory(),
    "sizes of types": lambda f, m: [
        f.api.get_num_bytes_of_data_type(f.api.DataType(number)) for number in range(8)
    ],
    "TensorRT's version": lambda f, m: (
        f.api.get_trt_compile_version(),
        f.api.get_trt_runtime_version(),
    ),
    "version": lambda f, m: f.api.get_version().splitlines()[0],
    "three paths": lambda f, m: f.api.Config("a", "b", "c"),
    "no path": lambda f, m: f.api.Config(None),
    "no such option": lambda f, m: f.config(m).faster(),
    "no such attribute": lambda f, m: setattr(f.config(m), "threads", 3),
    "no such input": lambda f, m: f.api.create_predictor(f.config(m)).get_input_handle("x"),
    "no such output": lambda f, m: f.api.create_predictor(f.config(m)).get_output_handle("x"),
    "empty handle": of_handle(lambda h: None),
    "strings": of_handle(lambda h: h.copy_from_cpu([1, 2])),
    "complex": of_handle(copied("complex64")),
    **{dtype: of_handle(copied(dtype)) for dtype in (
        "int64", "int32", "int16", "int8", "uint8", "uint16", "uint64", "bool", "float16",
        "float32", "float64",
    )},
    "not contiguous": of_handle(lambda h: h.copy_from_cpu(np.arange(14).reshape(7, 2)[:, :1])),
    "no axes": of_handle(lambda h: h.copy_from_cpu(np.array(5))),
    "no words": of_handle(lambda h: (h.copy_from_cpu(np.zeros((0, 1), np.int64)), h.set_lod(LOD))),
    "another shape before": of_handle(lambda h: (h.reshape([7, 1]), h.copy_from_cpu(LETTERS))),
    "shape behind": of_handle(lambda h: (h.copy_from_cpu(LETTERS), h.reshape([3, 1]))),
    "shape as an array": of_handle(
        lambda h: (h.copy_from_cpu(LETTERS), h.reshape(np.array([7, 1])))
    ),
    "lod as arrays": of_handle(lambda h: (h.copy_from_cpu(LETTERS), h.set_lod([np.array(LOD[0])]))),
    "lod as tuples": of_handle(lambda h: (h.copy_from_cpu(LETTERS), h.set_lod((tuple(LOD[0]),)))),
    "lod behind a second copy": of_handle(
        lambda h: (h.set_lod(LOD), h.copy_from_cpu(LETTERS), h.copy_from_cpu(LETTERS[:2]))
    ),
    "lod that does not fit": of_handle(lambda h: (h.copy_from_cpu(LETTERS), h.set_lod([[0, 9]]))),
    "flat lod": of_handle(lambda h: h.set_lod(LOD[0])),
    "tensor": tensor_of(LETTERS),
    "tensor named": tensor_of(data=LETTERS.reshape(7, 1), name="w", lod=LOD, copy=True),
    "tensor of float32": tensor_of(LETTERS.astype(np.float32)),
    "tensor of float16": tensor_of(LETTERS.astype(np.float16)),
    "tensor of int8": tensor_of(LETTERS.astype(np.int8)),
    "tensor of bool": tensor_of(LETTERS > 3),
    "tensor of float64": tensor_of(LETTERS.astype(np.float64)),
    "tensor of a list": tensor_of([1, 2]),
    "buffer": lambda f, m: (
        (b := f.buffer(LETTERS)).length(), b.empty(), b.int64_data(), b.int32_data(), b.float_data()
    ),
    "buffer of floats": lambda f, m: ((b := f.buffer([1.0, 2.0])).length(), b.float_data()),
    "buffer of bytes": lambda f, m: (f.buffer(16).length(), f.buffer(16).empty()),
    "lod tensor": lambda f, m: (
        (t := f.lod_tensor(LETTERS, [[3, 4]], None or paddle.CPUPlace())).lod(),
        t.recursive_sequence_lengths(), t.has_valid_recursive_sequence_lengths(), t.shape(),
        np.array(t),
    ),
    "lod tensor of lists": lambda f, m: (
        (t := f.lod_tensor([[1, 2, 3], [4, 5]], [[3, 2]], paddle.CPUPlace())).lod(), np.array(t),
        t.shape(),
    ),
    "lod tensor that does not fit": lambda f, m: f.lod_tensor(LETTERS, [[3, 5]], paddle.CPUPlace()),
}  # fmt: skip


def told(case: Callable[[Face, Path], Any], face: Face, model: Path) -> Any:
    try:
        return case(face, model)
    except Exception as error:
        return error


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for each, wanted in zip(ours, theirs, strict=True):
            same(each, wanted)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        same(list(ours.values()), [theirs[key] for key in ours])
    elif isinstance(theirs, np.ndarray) or isinstance(theirs, float):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_what_paddles_gives(name: str, model: Path) -> None:
    ours, theirs = (told(CASES[name], face, model) for face in (OURS, THEIRS))
    if isinstance(theirs, Exception):
        family = next(e for e in (RuntimeError, ValueError, TypeError, AttributeError)
                      if isinstance(theirs, e))  # fmt: skip
        assert isinstance(ours, family), (ours, theirs)
    else:
        assert not isinstance(ours, Exception), (ours, theirs)
        same(ours, theirs)


@pytest.fixture
def static() -> Iterator[None]:
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    yield
    if dynamic:
        paddle.disable_static()


@pytest.mark.usefixtures("static")
def test_an_executor_gives_what_paddles_gives(model: Path) -> None:
    from onernn.adapters.paddle.inference import predictors as ours

    found = []
    for kind, place, load, create in (
        (ours.Executor, ours.CPUPlace(), ours.load_static_model, tensors.create_lod_tensor),
        (
            paddle.static.Executor,
            paddle.CPUPlace(),
            paddle.static.load_inference_model,
            paddle.base.create_lod_tensor,
        ),
    ):
        run = kind(place)
        program, feeds, fetches = load(str(model), run)
        fed = {feeds[0]: create(LETTERS, [[3, 4]], place)}
        saved = run.run(program, feed=fed, return_numpy=False)
        given = run.run(program, feed=fed, fetch_list=fetches, return_numpy=False)
        by_name = run.run(program, fed, [each.name for each in fetches], return_numpy=False)
        with pytest.raises(RuntimeError, match="return_numpy"):
            run.run(program, feed=fed, fetch_list=fetches)
        with pytest.raises(RuntimeError):
            run.run(program, feed=fed, fetch_list=["nowhere"], return_numpy=False)
        variables = [(each.name, each.shape, each.lod_level) for each in fetches]
        values = [(np.array(t), t.lod(), t.shape()) for t in [*given, *by_name, *saved]]
        found.append((feeds, variables, values))
    same(*found)


@pytest.mark.usefixtures("dynamic_mode")
def test_recordings_take_each_kind_of_tensor(model: Path, tmp_path: Path) -> None:
    lod_tensor = paddle.base.create_lod_tensor(LETTERS, [[3, 4]], paddle.CPUPlace())
    predictor = paddle.inference.create_predictor(THEIRS.config(model))
    handle = predictor.get_input_handle("letters")
    handle.copy_from_cpu(LETTERS)
    handle.set_lod(LOD)
    dense = paddle.to_tensor(LETTERS.astype(np.float32))
    given = {"a": lod_tensor, "b": handle, "c": CORE.PaddleTensor(LETTERS, "c", LOD)}
    recording.save(tmp_path / "io.npz", given, {"d": dense, "e": dense.astype("bfloat16")})
    with np.load(tmp_path / "io.npz") as found:
        for name in given:
            np.testing.assert_array_equal(found[f"in__{name}"], LETTERS)
            assert found[f"lod__{name}"].tolist() == LOD[0]
        for name in ("d", "e"):
            np.testing.assert_array_equal(found[f"out__{name}"], LETTERS)
