"""One small net in JSON, as MXNet of four ages wrote it."""

from __future__ import annotations

import json
from typing import Any

AGES = {"0.8": "param", "0.11": "attr", "1.9": "attrs", "2.0": "attrs"}
"""The key under which each age has an operator's attributes."""

_NUMBERS = {"0.11": 1100, "1.9": 10901, "2.0": 20000}


def old_symbol(age: str) -> str:
    """softmax(BatchNorm(data @ fc1_weight.T + fc1_bias) + 0.5) with 4 classes, fix_gamma off."""
    nodes: list[dict[str, Any]] = []
    key = AGES[age]

    def node(op: str, name: str, inputs: list[int], **attributes: str) -> int:
        made: dict[str, Any] = {"op": op, "name": name}
        made["inputs"] = [[at, 0] if age == "0.8" else [at, 0, 0] for at in inputs]
        if age == "0.8":
            extra = {"ctx_group": "stage1"}
            extra |= {"weight_lr_mult": "1.2"} if op == "FullyConnected" else {}
            made |= {"param": attributes, "attr": extra, "backward_source_id": -1}
        elif attributes:
            made[key] = attributes
        nodes.append(made)
        return len(nodes) - 1

    def variables(*names: str) -> list[int]:
        return [node("null", name, []) for name in names]

    parameters = variables("data", "fc1_weight", "fc1_bias")
    fc = node("FullyConnected", "fc1", parameters, num_hidden="4", no_bias="False")
    normal = [fc, *variables("bn_gamma", "bn_beta")]
    if age != "0.8":  # until 0.9 auxiliary states were no inputs in the file
        normal += variables("bn_moving_mean", "bn_moving_var")
    options = {"eps": "0.001", "fix_gamma": "False", "momentum": "0.9", "use_global_stats": "False"}
    bn = node("BatchNorm", "bn", normal, **options)
    if age == "2.0":
        summed = node("_npi_add_scalar", "plus", [bn], scalar="0.5", is_int="False")
        out = node("_npx_softmax", "softmax", [summed], axis="-1")
    else:
        summed = node("_PlusScalar", "plus", [bn], scalar="0.5")
        labelled = [summed, *variables("softmax_label")]
        out = node("SoftmaxOutput", "softmax", labelled, grad_scale="1")
    graph = {}
    if age in _NUMBERS:
        graph["attrs"] = {"mxnet_version": ["int", _NUMBERS[age]]}
    if age == "2.0":
        graph["attrs"]["is_np_shape"] = ["int", 1]
    variables_at = [at for at, each in enumerate(nodes) if each["op"] == "null"]
    return json.dumps({"nodes": nodes, "arg_nodes": variables_at, "heads": [[out, 0]], **graph})
