"""What is read from the operator RNN, under the conformance kit, against MXNet."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from onernn.adapters.weight_conversion import read_layer
from onernn.verification.suite import Case, Conformance

MODES = {"rnn_tanh": "rnn_tanh", "rnn_relu": "rnn_relu", "lbr_gru": "gru"}
MODES |= {"lstm": "lstm", "lstm_projection": "lstm"}


class TestMxnet(Conformance):
    """Without lengths, which MXNet ignores on CPU: all sentences are equally long."""

    framework, known_failures = "mxnet", "mxnet_known_failures.toml"
    cells, directions = tuple(MODES), ("left2right", "bidirectional_concat")
    lengths, dtypes = ("equal", "word"), ("f32", "f64")

    def options(self, case: Case) -> dict[str, Any]:
        spec = case.spec
        return {
            "mode": MODES[case.cell],
            "state_size": spec.hidden_size,
            "num_layers": spec.layers,
            "bidirectional": spec.directions == 2,
            **({"projection_size": spec.projection_size} if spec.projection_size else {}),
        }

    def layer(self, case: Case) -> np.ndarray:
        """The vector of all parameters."""
        inputs = {"data": mx.sym.Variable("data"), "parameters": mx.sym.Variable("parameters")}
        inputs["state"] = mx.sym.Variable("state")
        if len(case.spec.cell.states) == 2:
            inputs["state_cell"] = mx.sym.Variable("state_cell")
        node = mx.sym.RNN(**inputs, state_outputs=True, **self.options(case))
        shapes = dict(
            zip(
                node.list_arguments(),
                node.infer_shape(data=case.padded(time_major=True).shape)[0],
                strict=True,
            )
        )
        return case.contractive(*shapes["parameters"])

    def outputs(self, flat: np.ndarray, case: Case) -> tuple[Any, Any]:
        spec = case.spec
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        shape = (spec.layers * spec.directions, len(case.x))
        zeros = [np.zeros((*shape, widths[part]), flat.dtype) for part in spec.cell.states]
        given = [
            each.reshape(zero.shape) for each, zero in zip(case.state or zeros, zeros, strict=True)
        ]
        arrays = [case.padded(time_major=True), flat, *given]
        made = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
        y, *final = mx.nd.RNN(*made, state_outputs=True, **self.options(case))
        places = (spec.layers, spec.directions, len(case.x), -1)
        states = tuple(each.asnumpy().reshape(places) for each in final)
        return case.cut(y.asnumpy(), time_major=True), states

    def weights(self, flat: np.ndarray, case: Case) -> Any:
        spec = case.spec
        return tuple(
            read_layer(
                {"parameters": flat},
                "mxnet",
                mode=MODES[case.cell],
                hidden=spec.hidden_size,
                layers=spec.layers,
                directions=spec.directions,
                projection=spec.projection_size,
            )
        )
