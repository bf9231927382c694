"""What our operators in a symbol stand for: kept in an attribute, and put back for files.

Works on symbols as JSON, without MXNet.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from onernn.adapters.mxnet.read import Entry

ORIGINAL = "onernn_original"
"""The attribute: nodes in JSON, compressed. In their inputs -1 - k is input k of our operator."""

Read = list[int]


def original(
    nodes: Any, heads: Sequence[Entry], leaves: Mapping[Entry, Read], steps: Sequence[Entry] = ()
) -> str:
    """The nodes from ``heads``, the outputs of an operator of ours, back to ``leaves``.

    ``leaves``: where each is read instead, -1 - k for input k of the operator. ``steps``: what a
    SliceChannel of the first output gives.
    """
    inside, waiting = set[int](), [each.node for each in (*heads, *steps)]
    while waiting:
        at = waiting.pop()
        if at not in inside:
            inside.add(at)
            reads = (Entry(*read[:2]) for read in nodes[at]["inputs"])
            waiting += [read.node for read in reads if read not in leaves]
    order = {at: place for place, at in enumerate(sorted(inside))}

    def moved(read: Sequence[int]) -> Read:
        entry = Entry(*read[:2])
        return leaves.get(entry) or [order[entry.node], entry.output, 0]

    kept = [{**nodes[at], "inputs": [*map(moved, nodes[at]["inputs"])]} for at in order]
    whole = {"nodes": kept, "heads": [*map(moved, heads)], "steps": [*map(moved, steps)]}
    return b64encode(zlib.compress(json.dumps(whole).encode())).decode()


def original_rnn(op: str, attributes: Mapping[str, Any], inputs: int, outputs: int) -> str:
    """`original` of an RNN operator that reads the first inputs of ours, in its own order."""
    attrs = {name: str(value) for name, value in attributes.items() if value is not None}
    reads = [[-1 - k, 0, 0] for k in range(inputs)]
    node = {"op": op, "name": "", "attrs": attrs, "inputs": reads}
    leaves = {Entry(*read[:2]): read for read in reads}
    return original([node], [Entry(0, k) for k in range(outputs)], leaves)


def restore_graph(graph: Any) -> bool:
    """Puts MXNet's operators back into a symbol; whether there were any of ours."""
    nodes, instead = graph["nodes"], dict[Entry, Read]()
    cuts = dict[str, tuple[int, list[Read]]]()  # SliceChannels around ours, and what they give
    for at, node in enumerate([*nodes]):
        if ORIGINAL in node.get("attrs", {}):
            heads, steps = _put_back(nodes, node)
            instead |= {Entry(at, k): head for k, head in enumerate(heads)}
            cuts[f"{node['name'].removesuffix('_onernn')}_steps"] = at, steps
        elif node["op"] == "stack" and node["name"].endswith("_input"):
            cuts[f"{node['name']}s"] = at, node["inputs"]
    for at, node in enumerate(nodes):
        cut, steps = cuts.get(node["name"], (-1, []))
        if node["op"] == "SliceChannel" and node["inputs"][0][0] == cut:
            instead |= {Entry(at, k): step for k, step in enumerate(steps)}

    def now(read: Read) -> Read:
        while (entry := Entry(*read[:2])) in instead:
            read = instead[entry]
        return read

    for node in nodes:
        node["inputs"] = [*map(now, node["inputs"])]
    for head in graph["heads"]:
        head[:] = now(head)
        node = nodes[head[0]]
        if node["op"] == "_copy" and nodes[node["inputs"][0][0]]["name"] == node["name"]:
            head[:] = node["inputs"][0]  # it kept the name of an output
    graph.pop("node_row_ptr", None)
    return bool(instead)


def _put_back(nodes: list[Any], node: Any) -> tuple[list[Read], list[Read]]:
    """Adds what an operator of ours stands for; gives what are its outputs, and their steps."""
    whole = json.loads(zlib.decompress(b64decode(node["attrs"][ORIGINAL])))
    first, reads = len(nodes), node["inputs"]

    def moved(read: Read) -> Read:
        return reads[-1 - read[0]] if read[0] < 0 else [first + read[0], *read[1:]]

    for each in whole["nodes"]:
        name = each["name"] or node["name"]
        nodes.append({**each, "name": name, "inputs": [*map(moved, each["inputs"])]})
    return [*map(moved, whole["heads"])], [*map(moved, whole["steps"])]
