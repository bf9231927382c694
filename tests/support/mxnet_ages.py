"""One small net in JSON, as MXNet of four ages wrote it."""

from __future__ import annotations

import json

from support.mxnet_files import node, symbol_text, var

AGES = {"0.8": "param", "0.11": "attr", "1.9": "attrs", "2.0": "attrs"}
"""The key under which each age has an operator's attributes."""

_NUMBERS = {"0.8": 800, "0.11": 1100, "1.9": 10901, "2.0": 20000}


def old_symbol(age: str) -> str:
    """softmax(BatchNorm(data @ fc1_weight.T + fc1_bias) + 0.5) with 4 classes, fix_gamma off."""
    # Until 0.9 auxiliary states were no inputs in the file.
    states = [] if age == "0.8" else ["bn_moving_mean", "bn_moving_var"]
    options = {"eps": "0.001", "fix_gamma": "False", "momentum": "0.9", "use_global_stats": "False"}
    dense = "fc1 = FullyConnected data fc1_weight fc1_bias"
    nodes = [
        *map(var, ("data", "fc1_weight", "fc1_bias")),
        node(dense, num_hidden="4", no_bias="False"),
        *map(var, ("bn_gamma", "bn_beta", *states)),
        node(" ".join(["bn = BatchNorm fc1 bn_gamma bn_beta", *states]), **options),
    ]
    if age == "2.0":
        nodes.append(node("plus = _npi_add_scalar bn", scalar="0.5", is_int="False"))
        nodes.append(node("softmax = _npx_softmax plus", axis="-1"))
    else:
        nodes += [node("plus = _PlusScalar bn", scalar="0.5"), var("softmax_label")]
        nodes.append(node("softmax = SoftmaxOutput plus softmax_label", grad_scale="1"))
    heads, version = [[len(nodes) - 1, 0]], ["int", _NUMBERS[age]]
    graph = json.loads(symbol_text(*nodes, heads=heads, mxnet_version=version))
    for each in graph["nodes"]:
        if attributes := each.pop("attrs"):
            each[AGES[age]] = attributes
        if age == "0.8":
            each["inputs"] = [read[:2] for read in each["inputs"]]
            each |= {"param": attributes, "attr": {"ctx_group": "stage1"}}
            each["backward_source_id"] = -1
            if each["op"] == "FullyConnected":
                each["attr"]["weight_lr_mult"] = "1.2"
    if age == "2.0":
        graph["attrs"]["is_np_shape"] = ["int", 1]
    if age == "0.8":
        del graph["attrs"]
    return json.dumps(graph)
