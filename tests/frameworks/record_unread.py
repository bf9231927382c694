"""Records small files of the kinds that onernn does not read, for tests of what it says of them.

pip install tensorflow-cpu && python tests/frameworks/record_unread.py tensorflow
pip install coremltools && python tests/frameworks/record_unread.py coreml
pip install dynet38 && python tests/frameworks/record_unread.py dynet
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "data" / "unread"
MATRIX = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)


def tensorflow() -> None:
    """Writes y = tanh(x @ MATRIX) as a SavedModel, a frozen graph and a TensorFlow Lite model."""
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    module = tf.Module()
    module.matrix = tf.Variable(MATRIX)
    module.run = tf.function(lambda x: {"y": tf.tanh(x @ module.matrix)})
    function = module.run.get_concrete_function(tf.TensorSpec([None, 3], tf.float32, "x"))
    tf.saved_model.save(module, FOLDER / "saved", signatures=function)
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    (FOLDER / "frozen.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    variables = function.graph.as_graph_def()
    (FOLDER / "variables.pb").write_bytes(variables.SerializeToString())
    converter = tf.lite.TFLiteConverter.from_saved_model(str(FOLDER / "saved"))
    (FOLDER / "m.tflite").write_bytes(converter.convert())


def coreml() -> None:
    """Writes a layer as a neural network, and a GRU as a program in a package."""
    import coremltools as ct
    from coremltools.converters.mil import Builder
    from coremltools.models import datatypes, neural_network

    sizes = ("x", datatypes.Array(3)), ("y", datatypes.Array(2))
    builder = neural_network.NeuralNetworkBuilder([sizes[0]], [sizes[1]])
    builder.add_inner_product("layer", MATRIX.T, np.zeros(2), 3, 2, True, "x", "y")
    builder.spec.description.metadata.userDefined["key"] = "value"
    ct.models.utils.save_spec(builder.spec, str(FOLDER / "m.mlmodel"))

    spec = Builder.TensorSpec(shape=(4, 2, 3))

    @Builder.program(input_specs=[spec], opset_version=ct.target.iOS15)
    def program(x: Any) -> Any:
        weights = {"weight_ih": np.tile(MATRIX, 3).T, "weight_hh": np.tile(MATRIX[:2], 3).T}
        begin = np.zeros((2, 2), np.float32)
        return Builder.gru(x=x, initial_h=begin, output_sequence=True, **weights)[0]

    options = {"compute_precision": ct.precision.FLOAT32, "skip_model_load": True}
    target = ct.target.iOS15
    ct.convert(program, minimum_deployment_target=target, **options).save(FOLDER / "m.mlpackage")


def dynet() -> None:
    """Writes parameters; a table has its rows as columns."""
    import dynet as dy

    parameters = dy.ParameterCollection()
    parameters.add_parameters((3, 2), init=dy.NumpyInitializer(MATRIX), name="W")
    parameters.add_parameters(3, init=dy.ConstInitializer(0.5), name="b")
    parameters.lookup_parameters_from_numpy(MATRIX, name="E")
    parameters.save(str(FOLDER / "dynet.model"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    {"tensorflow": tensorflow, "coreml": coreml, "dynet": dynet}[sys.argv[1]]()
