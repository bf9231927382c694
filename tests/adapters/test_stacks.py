"""Layers as whole stacks: what weights are converted from, whatever a model does with states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_array_equal
from support.graphs import new_node, rnn_node
from support.onnx_models import parameters, parsed, small
from typer.testing import CliRunner

import onernn
from onernn import UnsupportedError
from onernn.adapters.stacks import read_stacks, without_states
from onernn.cli import app
from onernn.ir.graph import Graph, Value
from onernn.ir.spec import Cell, RnnSpec

DATA = Path(__file__).parents[1] / "data"
NAMES = [
    f"{kind}_l{layer}{side}"
    for layer in range(2)
    for side in ("", "_reverse")
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
]
"""What torch.nn.LSTM(..., num_layers=2, bidirectional=True) calls its parameters."""


@pytest.mark.parametrize("name", ["torch_tagger", "torch_tagger_dynamo"])
def test_layers_with_states_of_their_own_are_one_stack(name: str) -> None:
    """PyTorch's exporters write an operator for each layer, and join their last states."""
    (layer,) = read_stacks(DATA / "onnx" / name / "model.onnx").values()
    assert (layer.spec.layers, layer.spec.directions) == (2, 2)


def test_a_layer_of_which_only_the_last_state_is_read_is_kept() -> None:
    spec = RnnSpec(Cell.LBR_GRU, 3, 2)
    rnn = rnn_node(" h = Rnn x", spec)
    last = new_node("out = Relu h")
    face = Value("x", "float32", (None, None, 3)), Value("out", "float32")
    model = without_states(Graph("g", face[:1], face[1:], (rnn, last), {}))
    assert [node.op for node in onernn.fuse(model).model.nodes] == ["Rnn", "Relu"]


def test_layers_that_a_mask_stands_between_are_one_stack(tmp_path: Path) -> None:
    """Keras writes a loop for each direction, over reversed steps, and takes words out by a mask.

    The weights were drawn in Keras's order: an embedding, then kernel, recurrent kernel and bias.
    """
    found = written(tmp_path, DATA / "onnx/keras3_masked_stack_both/model.onnx", "--to", "torch")
    assert sorted(found) == sorted(NAMES)
    rng = np.random.default_rng(1)

    def drawn(*shape: int) -> np.ndarray:
        return rng.uniform(-0.4, 0.4, shape).astype(np.float32)

    drawn(20, 6)
    for layer, width in enumerate((6, 6)):
        for side in ("", "_reverse"):
            for kind, shape in (("ih", (width, 12)), ("hh", (3, 12))):
                array = found[f"weight_{kind}_l{layer}{side}"]
                assert_array_equal(array, drawn(*shape).T)
            bias = (found[f"bias_{kind}_l{layer}{side}"] for kind in ("ih", "hh"))
            assert_array_equal(sum(bias), drawn(12))


def written(tmp_path: Path, *arguments: object) -> dict[str, np.ndarray]:
    out = tmp_path / "weights.npz"
    done = CliRunner().invoke(app, ["weights", *map(str, arguments), "--output", str(out)])
    assert done.exit_code == 0, done.output
    return dict(np.load(out))


@pytest.mark.parametrize("model", ["onnx/torch_tagger/model.onnx", "torch/tagger/model.pt2"])
@pytest.mark.parametrize("prefix", ["", "encoder.lstm."])
def test_the_command_gives_the_names_of_one_module(model: str, prefix: str, tmp_path: Path) -> None:
    found = written(tmp_path, DATA / model, "--to", "torch", "--prefix", prefix)
    assert sorted(found) == sorted(f"{prefix}{name}" for name in NAMES)


def test_a_file_of_weights_is_converted_module_by_module(tmp_path: Path) -> None:
    weights = DATA / "torch/weights"
    found = written(tmp_path, weights / "state.safetensors", "--to", "torch")
    state = {k: v for k, v in np.load(weights / "arrays.npz").items() if k != "scale"}
    assert found.keys() == state.keys()
    one = written(tmp_path, weights / "state.pt", "--to", "keras", "--node", "decoder.gru")
    kernel, recurrent = state["decoder.gru.weight_ih_l0"], state["decoder.gru.weight_hh_l0"]
    order = [2, 3, 0, 1, 4, 5]  # Keras's gates are z, r, h, PyTorch's r, z, n; each has two rows
    assert_array_equal(one["kernel"], kernel[order].T)
    assert_array_equal(one["recurrent_kernel"], recurrent[order].T)


def test_layers_whose_values_are_ours_bear_the_names_of_the_file() -> None:
    layers, cells = DATA / "keras/text_classifier/model.keras", DATA / "keras/cells/model.keras"
    for model, names in (
        (layers, ["bidirectional", "bidirectional_1"]),
        (cells, ["rnn", "rnn#2", "rnn#3"]),
    ):
        assert [*read_stacks(model)] == names
        assert [*read_stacks(model, node=names[1])] == names[1:2]


def test_a_layer_is_found_by_its_name_and_by_the_value_that_it_makes(tmp_path: Path) -> None:
    named = onnx.load(DATA / "onnx/torch_tagger/model.onnx")
    layers = [node for node in named.graph.node if node.op_type == "LSTM"]
    for at, node in enumerate(layers):
        node.name = f"/encoder/LSTM_{at}"
    onnx.save(named, tmp_path / "m.onnx")
    (whole,) = read_stacks(tmp_path / "m.onnx")
    for asked in (whole, "/encoder/LSTM_0", "/encoder/LSTM_1", layers[1].output[0]):
        assert [*read_stacks(tmp_path / "m.onnx", node=asked)] == [whole]
    with pytest.raises(UnsupportedError, match=f"'/r'; there are: '{whole}'"):
        read_stacks(tmp_path / "m.onnx", node="/r")


def _several(path: Path, *layers: str) -> Path:
    """A model of GRUs, each NAME or NAME with attributes, which all read x (T, N, 3)."""
    names = [each.split(",")[0] for each in layers]
    nodes = (
        f"[{name}] {name} = GRU <hidden_size = 4{each.removeprefix(name)}> (x, W, R)"
        for name, each in zip(names, layers, strict=True)
    )
    text = f"(float[T, N, 3] x) => ({', '.join(names)}) {{ {' '.join(nodes)} }}"
    onnx.save(parsed(text, small(parameters("GRU", 3, 4), "W", "R")), path)
    return path


WRONG = 'wrong, activations = ["Sine", "Tanh"]'


def test_layers_that_cannot_be_written_are_named_and_the_command_exits_with_1(
    tmp_path: Path,
) -> None:
    file = _several(tmp_path / "m.onnx", "right", WRONG)
    arguments = ["weights", str(file), "--output", str(tmp_path / "w.npz"), "--to"]
    run = CliRunner().invoke(app, [*arguments, "onnx"])
    assert run.exit_code == 1 and "'wrong'" in run.stderr and "'right'" not in run.stderr
    assert {*np.load(tmp_path / "w.npz")} == {"right/W", "right/R"}
    run = CliRunner().invoke(app, [*arguments, "onnx", "--node", "right"])
    assert run.exit_code == 0 and {*np.load(tmp_path / "w.npz")} == {"W", "R"}
    with pytest.raises(UnsupportedError, match="'wrong'"):
        onernn.convert_weights(onernn.load(file), to="onnx")
    # Another kind: a layer that the layout cannot express.
    file = _several(tmp_path / "m.onnx", "right", "after, linear_before_reset = 1")
    run = CliRunner().invoke(app, [*arguments, "torch"])
    assert run.exit_code == 1 and "'right'" in run.stderr and "PyTorch has no GRU" in run.stderr
    assert all(name.startswith("after.") for name in np.load(tmp_path / "w.npz"))


def test_a_model_of_which_no_layer_is_read_is_not_called_one_without_layers(tmp_path: Path) -> None:
    file = _several(tmp_path / "m.onnx", WRONG)
    for path in (file, DATA / "onnx/onnxruntime_quantized_signed/model.onnx"):
        with pytest.raises(UnsupportedError, match=path.name) as e:
            read_stacks(path)
        assert len(e.value.refusals) == 1


@pytest.mark.parametrize("name", ["keras/states/model.keras", "mxnet/gluon_unrolled_stack"])
def test_layers_side_by_side_that_several_nodes_read_are_joined_once(name: str) -> None:
    assert read_stacks(DATA / name)


def test_weights_that_two_places_share_come_once_and_layers_in_loops_are_found() -> None:
    assert len(read_stacks(DATA / "torch/cells/model.pt2")) == 1, "one LSTMCell for all steps"
    assert len(read_stacks(DATA / "onnx/keras_stacked_cells/model.onnx")) == 2


def test_where_there_is_no_layer_the_message_says_what_was_searched(tmp_path: Path) -> None:
    model = DATA / "paddle/pooled/model.pdmodel"
    options = ["weights", str(model), "--to", "torch", "--output", str(tmp_path / "w.npz")]
    error = CliRunner().invoke(app, options).exception
    assert isinstance(error, UnsupportedError) and not (tmp_path / "w.npz").exists()
    for part in ("no recurrent layer", "12 operators were searched", "loops", "stay unrolled"):
        assert part in str(error)


def test_a_graph_of_one_stack_is_converted_and_one_of_several_names_them() -> None:
    model = onernn.load(DATA / "onnx/torch_tagger/model.onnx")
    assert sorted(onernn.convert_weights(model, "torch")) == sorted(NAMES)
    with pytest.raises(UnsupportedError, match="'bidirectional', 'bidirectional_1'"):
        onernn.convert_weights(onernn.load(DATA / "keras/text_classifier/model.keras"), "torch")
