"""Causes: known faults that explain why outputs differ, and the edits that undo them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal, get_args

import numpy as np

from onernn.fuse_passes import fuse
from onernn.fuse_passes.rewriting import order
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.records import dataclass
from onernn.verification.tracing import expand

ADVICE = {
    "gates_swapped": "Write the blocks of weights and biases in the order of the gates that the"
    " file's format defines.",
    "update_sign": "One side keeps the old state with the update gate, the other one replaces it"
    " (Paddle's origin_mode): negate the update gate's weights and bias, or set the attribute.",
    "reset_placement": "One side resets the state before the recurrent product, the other one its"
    " result: set linear_before_reset (ONNX) or reset_after (Keras) accordingly.",
    "bias_merged": "The framework has two biases, of the input and of the recurrent product: keep"
    " both; a GRU that resets after the product needs the candidate's apart.",
    "bias_doubled": "The same bias is added twice: in the projection and again in the layer, or"
    " once for the input and once for the state. Set one of them to zero.",
    "h0_dropped": "Feed the initial state to the recurrent operator: a converter or a fusion pass"
    " has left that input out.",
    "mask_ignored": "Give the sentence lengths to the recurrent operator (sequence_lens in ONNX,"
    " use_sequence_length in MXNet, SequenceLength in Paddle).",
    "reverse_padded": "Reverse each sentence within its own length, not the padded row: give the"
    " lengths to the backward direction.",
    "clip_ignored": "Carry the clipping attribute over: clip (ONNX), lstm_state_clip_min and _max"
    " (MXNet), cell_clip (Keras).",
    "weight_transposed": "Transpose the weight: one side stores (out, in), the other (in, out).",
    "direction_swapped": "Exchange the forward and the backward direction: of the weights, or of"
    " the outputs.",
    "activation_changed": "Set the activations of the recurrent operator as the reference has"
    " them: frameworks differ in their defaults (Keras 2 had hard_sigmoid), and converters drop"
    " them.",
    "attribute_changed": "Set the attribute as the reference has it: it was not carried over, or"
    " replaced by a default.",
    "weights_rounded": "Convert again from weights of full precision: these went through a narrow"
    " type, or allow for it with --atol and --rtol.",
    "weights_changed": "Read these weights again from the reference's file: they are of another"
    " layer, another checkpoint, or were changed in between.",
    "bias_changed": "Read this bias again from the reference's file. Where the framework has two,"
    " of the input and of the recurrent product, see that both are there, and each once.",
    "bias_shifted": "The same number was added to all units of a gate, as Keras's"
    " unit_forget_bias or a forget bias of TensorFlow is: add it once.",
    "bias_zeroed": "Set the bias: the file has zeros in its place.",
    "constant_changed": "Set the constant as the reference has it.",
    "states_exchanged": "Exchange the initial states again: of the hidden and the cell state, or"
    " of the layers.",
    "state_returned": "Return the layer's final state. The model returns the state that it was"
    " given, so that each call begins where the first one did.",
    "layers_exchanged": "Give each layer its own weights: they were written in another order.",
    "input_exchanged": "Connect the input as the reference does.",
    "operator_missing": "Put the operator in its place: the exporter or a pass left it out.",
    "operator_added": "Take the operator out: the reference does not have it.",
    "operator_changed": "Replace the operators by the reference's.",
}
"""The change that a user should make, by the id of a cause."""

Proof = Literal["proved", "candidate"]
PROOFS = get_args(Proof)
Form = Literal["read", "taken apart"]
"""The graph that edits change. "read": the model's graph without changes. "taken apart": the fused
graph, expanded to one layer and direction per node.
"""


GIVEN = ".given"
"""This suffix marks constants whose values come from the batch on which a fault was tried."""


@dataclass(frozen=True, eq=False)
class Edit:
    """Nodes of a graph, by their first outputs, and the nodes that replace them.

    ``constants``, ``inputs``: the constants and inputs that the new nodes add to the graph.
    """

    old: tuple[str, ...]
    new: tuple[Node, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[Value, ...] = ()

    @property
    def holds_batch(self) -> bool:
        """Whether new constants hold values of one batch; then the edited graph is right for this
        batch only.
        """
        return any(GIVEN in name for name in self.constants)

    @classmethod
    def between(cls, graph: Graph, other: Graph) -> Edit:
        """Returns the edit that changes ``graph`` to ``other``; both share the objects of unchanged
        nodes.
        """
        kept = {id(node) for node in graph.nodes} & {id(node) for node in other.nodes}
        names = {value.name for value in graph.inputs}
        return cls(
            tuple(n.outputs[0] for n in graph.nodes if id(n) not in kept),
            tuple(n for n in other.nodes if id(n) not in kept),
            {k: a for k, a in other.constants.items() if graph.constants.get(k) is not a},
            tuple(value for value in other.inputs if value.name not in names),
        )


def apply_edits(graph: Graph, edits: Iterable[Edit]) -> Graph:
    """Returns the graph with all edits, and its nodes in an order in which they can run.

    Raises `ModelFormatError` if the edits contradict each other.
    """
    chosen = list(dict.fromkeys(edits))
    gone = {name for edit in chosen for name in edit.old}
    nodes = {node.outputs[0]: node for node in graph.nodes if node.outputs[0] not in gone}
    inputs = {value.name: value for value in graph.inputs}
    constants = dict(graph.constants)
    for edit in chosen:
        nodes |= {node.outputs[0]: node for node in edit.new}
        inputs |= {value.name: value for value in edit.inputs}
        constants |= edit.constants
    return sort_nodes(graph, nodes.values(), inputs.values(), constants)


def sort_nodes(
    graph: Graph, nodes: Iterable[Node], inputs: Iterable[Value], constants: Mapping[str, Array]
) -> Graph:
    """Returns the graph with these nodes in an order in which they can run, without nodes that no
    output needs.

    Raises `ModelFormatError` if no order exists.
    """
    values = tuple(inputs)
    return replace(graph, nodes=order(nodes), inputs=values, constants=constants).prune()


@dataclass(frozen=True, eq=False)
class Cause:
    """A fault that explains why outputs differ.

    ``id``: one of `ADVICE`. ``text`` describes the fault; in messages it follows "the model".
    ``where``: the layer or operator. ``node``: the first output of the node in the model, "" if
    there is none. ``evidence``: "proved" if the edits of all causes of a report make the outputs
    match, also on batches that were not used to find the causes; otherwise "candidate". ``edits``:
    changes that undo the fault, in the graph that ``form`` names; none if only the reference can be
    changed. ``before``, ``after``: the largest relative difference of outputs, without and with the
    edits.
    """

    id: str
    text: str
    where: str = ""
    node: str = ""
    evidence: Proof = "candidate"
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    form: Form = "taken apart"
    before: float = np.nan
    after: float = np.nan

    @property
    def advice(self) -> str:
        return ADVICE.get(self.id, "")

    def as_json(self) -> dict[str, Any]:
        """Returns ``{"id", "text", "evidence", "where", "node", "advice"}``."""
        keys = ("id", "text", "evidence", "where", "node", "advice")
        return {key: getattr(self, key) for key in keys}


def undo_causes(model: Graph, causes: Iterable[Cause]) -> Graph:
    """Returns the model without these faults. The edits change the graph as read, or the fused and
    expanded graph, depending on the ``form`` of the causes.

    Raises `UnsupportedError` if a fault cannot be undone in the model.
    """
    result = list(causes)
    for cause in result:
        if not cause.edits or any(edit.holds_batch for edit in cause.edits):
            why = "the fault cannot be undone in the model; convert it again"
            raise UnsupportedError(f"{why}: {cause.text}")
    forms = {cause.form for cause in result}
    if len(forms) > 1:
        raise UnsupportedError("causes: expected one form of the model; undo them one by one")
    graph = expand(fuse(model).model)[0] if "taken apart" in forms else model
    return apply_edits(graph, (edit for cause in result for edit in cause.edits))
