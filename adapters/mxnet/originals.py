"""Replaces operators of a symbol, and restores them: each new operator stores the operators that it
replaced.

Works on symbols as JSON, without MXNet.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onernn.adapters.mxnet.read import Entry

ORIGINAL = "onernn_original"
"""The attribute in which onernn's operator stores the replaced nodes, as compressed JSON.

In the inputs of these nodes, [-1 - k, 0, 0] denotes input k of onernn's operator. If onernn has
added an operator that stacks steps to this input, [-1 - k, t, 1] denotes step t.
"""

Read = list[int]


class Rewriting:
    """A symbol in JSON in which outputs of nodes are replaced by other outputs. MXNet drops nodes
    that nothing reads.

    ``instead``: the output that replaces each replaced output. Positions of nodes do not change.
    """

    def __init__(self, text: str) -> None:
        self.graph = json.loads(text)
        self.nodes: list[Any] = self.graph["nodes"]
        self.instead: dict[Entry, Sequence[int]] = {}

    def add(self, op: str, name: str, reads: Iterable[Sequence[int]], **attributes: Any) -> Entry:
        """Adds a node; returns its first output."""
        attrs = {key: str(value) for key, value in attributes.items()}
        self.nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": [*map(list, reads)]})
        return Entry(len(self.nodes) - 1)

    def resolve(self, read: Sequence[int]) -> Read:
        """Returns the output that replaces ``read``; ``read`` itself if it is not replaced."""
        while (entry := Entry(*read[:2])) in self.instead:
            read = self.instead[entry]
        return [*read]

    def finish(self) -> Any:
        """Returns the rewritten graph; outputs of the symbol keep their names."""
        for node in self.nodes:
            node["inputs"] = [*map(self.resolve, node["inputs"])]
        for head in self.graph["heads"]:
            name, read = self.nodes[head[0]]["name"], self.resolve(head)
            same = self.nodes[read[0]]["name"] == name
            head[:] = read if same else self.add("_copy", name, [read])
        self.graph.pop("node_row_ptr", None)  # counts outputs, of which Custom has more
        return self.graph


def keep(nodes: Sequence[Any], heads: Sequence[Entry], leaves: Mapping[Entry, Read]) -> str:
    """Returns the text of `ORIGINAL` for the nodes that compute ``heads`` from ``leaves``.

    ``heads``: the outputs of a replaced operator, then the steps into which a SliceChannel cuts its
    first output. ``leaves``: the stored form of each value that the operator reads.
    """
    inside, waiting = set[int](), [each.node for each in heads]
    while waiting:
        at = waiting.pop()
        if at not in inside:
            inside.add(at)
            reads = (Entry(*read[:2]) for read in nodes[at]["inputs"])
            waiting += [read.node for read in reads if read not in leaves]
    order = {at: place for place, at in enumerate(sorted(inside))}

    def rename(read: Sequence[int]) -> Read:
        entry = Entry(*read[:2])
        return leaves.get(entry) or [order[entry.node], entry.output, 0]

    kept = [{**nodes[at], "inputs": [*map(rename, nodes[at]["inputs"])]} for at in order]
    whole = {"nodes": kept, "heads": [*map(rename, heads)]}
    return b64encode(zlib.compress(json.dumps(whole).encode())).decode()


def name_inputs(reads: Iterable[Sequence[int]]) -> dict[Entry, Read]:
    """Returns the argument ``leaves`` of `keep` for an operator with the inputs ``reads``."""
    return {Entry(*read[:2]): [-1 - k, 0, 0] for k, read in enumerate(reads)}


def keep_rnn(op: str, attributes: Mapping[str, Any], inputs: int, outputs: int) -> str:
    """Returns the text of `ORIGINAL` for an RNN operator that reads the first inputs of onernn's
    operator.
    """
    attrs = {name: str(value) for name, value in attributes.items() if value is not None}
    reads = [[-1 - k, 0, 0] for k in range(inputs)]
    node = {"op": op, "name": "", "attrs": attrs, "inputs": reads}
    return keep([node], [Entry(0, k) for k in range(outputs)], name_inputs(reads))


def restore_graph(text: str) -> Any:
    """Returns the graph of a symbol with MXNet's own operators, None if the symbol has no operator
    of onernn.
    """
    rewriting = Rewriting(text)
    nodes, instead = rewriting.nodes, rewriting.instead
    originals = dict[int, list[Read]]()
    for at, node in enumerate([*nodes]):
        if ORIGINAL in node.get("attrs", {}):
            originals[at] = _add_original(nodes, node)
            instead |= {Entry(at, k): head for k, head in enumerate(originals[at])}
    if not instead:
        return None
    for at, node in enumerate(nodes):
        source = node["inputs"][0][0] if node["inputs"] else at
        if node["op"] == "SliceChannel" and source in originals:
            if node["name"] == f"{nodes[source]['name'].removesuffix('_onernn')}_steps":
                steps = originals[source][-int(node["attrs"]["num_outputs"]) :]
                instead |= {Entry(at, k): step for k, step in enumerate(steps)}
        elif node["op"] == "_copy":
            read = rewriting.resolve(node["inputs"][0])
            if nodes[read[0]]["name"] == node["name"]:  # `finish` added this copy for its name
                instead[Entry(at)] = read
    return rewriting.finish()


def _add_original(nodes: list[Any], node: Any) -> list[Read]:
    """Adds the nodes that an operator replaced. Returns their outputs that other nodes read."""
    whole = json.loads(zlib.decompress(b64decode(node["attrs"][ORIGINAL])))
    first, reads = len(nodes), node["inputs"]

    def rename(read: Read) -> Read:
        if read[0] >= 0:
            return [first + read[0], *read[1:]]
        source: Read = reads[-1 - read[0]]
        return nodes[source[0]]["inputs"][read[1]] if read[2] else source

    for each in whole["nodes"]:
        name = each["name"] or node["name"]
        nodes.append({**each, "name": name, "inputs": [*map(rename, each["inputs"])]})
    return [*map(rename, whole["heads"])]
