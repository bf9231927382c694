"""Paddle Inference's interface: recordings of Paddle go through it, and mistakes are told."""

from __future__ import annotations

import ast
import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.paddle_names import markdown

from onernn import OnernnError, Ragged, ShapeError, UnsupportedError, load
from onernn.adapters.paddle import inference
from onernn.adapters.paddle.inference import config
from onernn.adapters.paddle.inference.predictors import (
    CPUPlace,
    Executor,
    create_paddle_predictor,
    load_inference_model,
)
from onernn.adapters.paddle.inference.tensors import (
    EagerTensor,
    LoDTensor,
    PaddleTensor,
    create_lod_tensor,
)
from onernn.ir.ragged import data_of
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

MODELS = (
    "bidirectional_states bigru_concat embedding_crf initial_state multi_gru_two_layers normalized"
    " pir_recurrent pooled rnn_gru rnn_lstm two_levels"
).split()
LETTERS = np.arange(1, 8)
LOD = [[0, 3, 7]]


class Recorded:
    """A model that Paddle saved, what it was fed, and what it gave."""

    def __init__(self, folder: Path) -> None:
        arrays, graph = read_arrays(folder / "io.npz"), load(folder)
        self.folder = folder
        self.fed = read_inputs(arrays, graph.inputs)
        self.given = read_outputs(arrays, graph.outputs)

    def check(self, name: str, data: Any, lod: list[list[int]]) -> None:
        wanted = self.given[name]
        assert lod == (wanted.lod if isinstance(wanted, Ragged) else [])
        assert_allclose(data, data_of(wanted), rtol=1e-5, atol=1e-5)


@pytest.fixture(params=MODELS)
def recorded(request: pytest.FixtureRequest, data: Path) -> Recorded:
    return Recorded(data / "paddle" / request.param)


@pytest.fixture
def segmenter(repo: Path) -> inference.Config:
    model = repo / "examples" / "segmenter" / "model"
    return inference.Config(f"{model}.pdmodel", f"{model}.pdiparams")


def fill(handle: inference.Tensor, value: Any) -> None:
    handle.reshape(data_of(value).shape)
    handle.copy_from_cpu(data_of(value))
    if isinstance(value, Ragged):
        handle.set_lod(value.lod)


def test_a_recording_of_paddle_is_met_through_handles(recorded: Recorded) -> None:
    predictor = inference.create_predictor(inference.Config(str(recorded.folder)))
    outputs = {name: predictor.get_output_handle(name) for name in predictor.get_output_names()}
    for _ in range(2):
        for name in predictor.get_input_names():
            fill(predictor.get_input_handle(name), recorded.fed[name])
        predictor.run()
        for name, handle in outputs.items():
            recorded.check(name, handle.copy_to_cpu(), handle.lod())
            assert handle.shape() == list(handle.copy_to_cpu().shape)


def test_an_executor_meets_it_too(recorded: Recorded) -> None:
    executor = Executor(CPUPlace())
    program, feeds, fetches = load_inference_model(str(recorded.folder), executor)
    assert feeds == list(recorded.fed) and {each.name for each in fetches} >= set(recorded.given)
    feed: dict[str, Any] = {}
    for name, value in recorded.fed.items():
        feed[name] = data_of(value)
        if isinstance(value, Ragged):
            lengths = [np.diff(level).tolist() for level in value.lod]
            feed[name] = create_lod_tensor(value.data, lengths, CPUPlace())
    found = executor.run(program, feed=feed, fetch_list=fetches, return_numpy=False)
    for variable, tensor in zip(fetches, found, strict=True):
        if variable.name in recorded.given:
            recorded.check(variable.name, np.array(tensor), tensor.lod())


def test_any_variable_of_a_program_can_be_fetched(data: Path) -> None:
    recorded = Recorded(data / "paddle" / "initial_state")
    program, feeds, fetches = load_inference_model(str(recorded.folder), Executor())
    feed: dict[str, Any] = {}
    for name, value in recorded.fed.items():
        feed[name] = LoDTensor()
        feed[name].set(data_of(value), CPUPlace())
        feed[name].set_lod(value.lod if isinstance(value, Ragged) else [])
    again = Executor().run(program, feed, [feeds[0], fetches[0]], return_numpy=False)
    assert_array_equal(np.array(again[0]), data_of(recorded.fed[feeds[0]]))
    with pytest.raises(RuntimeError, match="fetch_list: expected variables.*nowhere"):
        Executor().run(program, feed, ["nowhere"])
    with pytest.raises(RuntimeError, match="return_numpy=False"):
        Executor().run(program, feed, fetches)


def test_predictors_of_paddle_1_take_tensors_in_order_or_by_name(data: Path) -> None:
    recorded = Recorded(data / "paddle" / "initial_state")
    tensors = {
        name: PaddleTensor(data_of(v), name, v.lod if isinstance(v, Ragged) else [])
        for name, v in recorded.fed.items()
    }
    config = inference.Config(str(recorded.folder))
    in_order = create_paddle_predictor(config).run([tensors[n] for n in recorded.fed])
    config.switch_specify_input_names(True)
    by_name = create_paddle_predictor(config).run(list(reversed(tensors.values())))
    for found in (*in_order, *by_name):
        recorded.check(found.name, found.as_ndarray(), found.lod)
        recorded.check(found.name, np.reshape(found.data.float_data(), found.shape), found.lod)


def test_a_model_in_memory_is_that_of_its_files(segmenter: inference.Config) -> None:
    parts = [Path(file()).read_bytes() for file in (segmenter.prog_file, segmenter.params_file)]
    config = inference.Config()
    config.set_model_buffer(parts[0], len(parts[0]), parts[1], len(parts[1]))
    assert config.model_from_memory() and inference.Config(config).model_from_memory()
    found = []
    for each in (config, segmenter):
        predictor = inference.create_predictor(each)
        fill(predictor.get_input_handle("letters"), Ragged(LETTERS, np.array(LOD[0])))
        predictor.run()
        found.append(
            [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]
        )
    for first, second in zip(*found, strict=True):
        assert_array_equal(first, second)


def test_clones_and_pools_share_weights_and_run_in_threads(segmenter: inference.Config) -> None:
    pool = inference.PredictorPool(segmenter, 3)
    assert pool.retrive(0) is pool.retrive(0)
    assert len({id(pool.retrive(k)._session) for k in range(3)}) == 1
    with pytest.raises(ShapeError, match="an index below 3, got 3"):
        pool.retrive(3)

    def run(k: int) -> list[Any]:
        predictor = pool.retrive(k)
        letters = np.arange(1, 4 + k)
        fill(predictor.get_input_handle("letters"), Ragged(letters, np.array([0, 1, 3 + k])))
        made = []
        for _ in range(20):
            predictor.run()
            made.append(predictor.get_output_handle(predictor.get_output_names()[1]).copy_to_cpu())
        return made

    alone = [run(k)[0] for k in range(3)]
    with ThreadPoolExecutor(3) as threads:
        for k, made in enumerate(threads.map(run, range(3))):
            for each in made:
                assert_array_equal(each, alone[k])
    assert pool.retrive(0).clone().get_input_handle("letters").shape() == [0]


def test_a_handle_keeps_its_own_copy_unless_it_shares(segmenter: inference.Config) -> None:
    handle = inference.create_predictor(segmenter).get_input_handle("letters")
    letters = LETTERS.copy()
    handle.copy_from_cpu(letters)
    letters[:] = 0
    assert_array_equal(handle.copy_to_cpu(), LETTERS)
    handle.set_lod(LOD)
    shared = LoDTensor()
    shared.set(LETTERS[::-1])
    handle.share_external_data(shared)
    assert handle.shape() == [7] and handle.lod() == LOD
    handle.share_external_data(EagerTensor(LETTERS[:2]))
    assert_array_equal(handle.copy_to_cpu(), LETTERS[:2])


def test_what_comes_out_is_the_callers_own(segmenter: inference.Config) -> None:
    predictor = inference.create_predictor(segmenter)
    fill(predictor.get_input_handle("letters"), Ragged(LETTERS, np.array(LOD[0])))
    output = predictor.get_output_handle(predictor.get_output_names()[0])
    predictor.run()
    first = output.copy_to_cpu()
    kept = first.copy()
    fill(predictor.get_input_handle("letters"), Ragged(LETTERS[::-1], np.array(LOD[0])))
    predictor.run()
    assert_array_equal(first, kept)
    assert not np.array_equal(output.copy_to_cpu(), kept)
    (scores, tags) = predictor.run([EagerTensor(LETTERS)])
    assert scores.shape == [7, 4] and len(tags.numpy()) == 7


def test_mistakes_name_the_tensor_and_the_way_out(segmenter: inference.Config) -> None:
    """Of which kind an error is, test_paddle_inference.py compares with Paddle."""
    predictor = inference.create_predictor(segmenter)
    handle = predictor.get_input_handle("letters")
    output = predictor.get_output_handle(predictor.get_output_names()[0])
    with pytest.raises(RuntimeError, match="'words'.* letters"):
        predictor.get_input_handle("words")
    with pytest.raises(RuntimeError, match="'letters'.*copy_from_cpu"):
        predictor.run()
    with pytest.raises(RuntimeError, match=r"run\(\)"):
        output.copy_to_cpu()
    handle.copy_from_cpu(LETTERS)
    with pytest.raises(ValueError, match=r"'letters'.*set_lod\(\[\[0, 7\]\]\)"):
        predictor.run()
    handle.set_lod([[0, 3, 9]])
    with pytest.raises(ValueError, match="end at 7, .* got 9"):
        predictor.run()
    handle.set_lod(LOD)
    handle.copy_from_cpu(LETTERS.astype(np.float32))
    with pytest.raises(ValueError, match="letters.*float32"):
        predictor.run()
    handle.reshape([100])
    with pytest.raises(RuntimeError, match=r"reshape\(\[100\]\)"):
        handle.copy_to_cpu()
    with pytest.raises(ShapeError, match=r"1 inputs \(letters\), got 0"):
        predictor.run([])


@pytest.mark.parametrize("ask", [{}, {"model": "/nowhere"}, {"model": "/no", "params": "/where"}])
def test_a_model_that_is_not_there_is_told(ask: dict[str, str]) -> None:
    with pytest.raises(OnernnError, match="no model|no such file"):
        inference.create_predictor(inference.Config(**ask))


def test_options_are_honoured_accepted_or_refused_by_name(segmenter: inference.Config) -> None:
    for name in config.NO_EFFECT:
        getattr(segmenter, name)()
    for name, answer in config.ANSWERS.items():
        assert getattr(segmenter, name)() == answer
    for name, what in config.NOT_HERE.items():
        with pytest.raises(UnsupportedError, match=f"Config.{name}: onernn runs on CPUs"):
            getattr(segmenter, name)()
        assert what
    with pytest.raises(UnsupportedError, match="GPUs"):
        segmenter.enable_use_gpu(100, 0)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="enable_warp_drive"):
        segmenter.enable_warp_drive()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        segmenter.threads = 2  # type: ignore[attr-defined]
    segmenter.set_cpu_math_library_num_threads(2)
    segmenter.enable_mkldnn_bfloat16()
    assert dtypes(segmenter) == {"bf16"}
    segmenter.set_bfloat16_op({"conv2d"})
    assert dtypes(segmenter) == {"f32"}
    segmenter.set_bfloat16_op({"gru"})
    segmenter.disable_mkldnn()
    assert dtypes(segmenter) == {"f32"}
    assert "bf16" not in segmenter.summary() and "letters" not in segmenter.summary()


def dtypes(config: inference.Config) -> set[str]:
    return {each.dtype for each in inference.create_predictor(config)._session.explained}


def test_shapes_and_offsets_must_fit_what_is_held() -> None:
    tensor = PaddleTensor(LETTERS)
    tensor.shape = [3, 1]
    assert_array_equal(tensor.as_ndarray(), LETTERS[:3, None])
    tensor.shape = [8, 1]
    with pytest.raises(RuntimeError, match="64 bytes"):
        tensor.as_ndarray()
    words = create_lod_tensor([[1, 2, 3], [4, 5]], [[3, 2]], CPUPlace())
    with pytest.raises(ShapeError, match="9"):
        words.set_lod([[0, 9]])
    words.set(np.ones((4, 1), np.float32))
    assert not words.has_valid_recursive_sequence_lengths()
    with pytest.raises(ShapeError, match="lengths"):
        create_lod_tensor([[1, 2, 3]], [[2]], CPUPlace())


def test_the_page_of_public_names_is_that_of_the_code(repo: Path) -> None:
    page = (repo / "docs" / "reference" / "paddle_inference.md").read_text()
    assert markdown() in page


def test_the_stub_says_what_is_there(repo: Path) -> None:
    stub = ast.parse(Path(str(inference.__file__)).with_suffix(".pyi").read_text())
    told = [each for each in stub.body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    assert {each.name for each in told} == set(inference.__all__)
    for owner in (each for each in told if isinstance(each, ast.ClassDef)):
        there = getattr(inference, owner.name)
        methods = [each for each in owner.body if isinstance(each, ast.FunctionDef)]
        public = {each.name for each in methods if each.name != "__init__"}
        refused = {*config.NOT_HERE, *config.PREDICTOR_NOT_HERE, "buffers", "dtype"}
        if methods:
            named = {n for n, v in vars(there).items() if n[0] != "_" and callable(v)}
            assert named - refused - {"Precision"} == public
        for method in methods:
            if method.name in config.NO_EFFECT or method.name in config.ANSWERS:
                continue
            parameters = list(inspect.signature(getattr(there, method.name)).parameters)
            if method.name != "__init__" or owner.name != "Tensor":
                assert parameters == [each.arg for each in method.args.args], method.name
