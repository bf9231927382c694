"""Cells that a symbol writes out, as the plug-in finds them: without MXNet, on files of it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from support.recordings import DATA

from onernn.adapters.mxnet.read import parse_symbol
from onernn.adapters.mxnet.regions import Region, find_regions
from onernn.ir.errors import Refusal


def graph_of(name: str) -> Any:
    return json.loads((DATA / "mxnet" / name / "model-symbol.json").read_text())


def found(graph: Any) -> list[Region | Refusal]:
    return list(find_regions(parse_symbol(json.dumps(graph)), {}))


def attribute(name: str, value: str | None) -> Callable[[Any], None]:
    def damage(loop: Any) -> None:
        loop["attrs"].pop(name)
        if value is not None:
            loop["attrs"][name] = value

    return damage


@pytest.mark.parametrize(
    "damage, reason",
    [
        (attribute("in_data_locs", "[9]"), "7 inputs, got [9, 3, 6, 1, 2, 4, 5]"),
        (attribute("in_state_locs", "[3, -1]"), "got [0, 3, -1, 1, 2, 4, 5]"),
        (attribute("in_state_locs", "[3]"), "got [0, 3, 1, 2, 4, 5]"),
        (attribute("remain_locs", None), "malformed: KeyError 'remain_locs'"),
        (attribute("num_out_data", "2"), "num_out_data=2: expected 3 outputs"),
        (attribute("num_outputs", "2"), "num_outputs=2, num_out_data=1: expected 3 outputs"),
        (lambda loop: loop["inputs"].pop(), "each of the 6 inputs, got"),
        (lambda loop: loop["subgraphs"][0]["heads"].pop(), "expected 2 outputs of the subgraph"),
        (lambda loop: loop["subgraphs"].pop(), "malformed: ValueError"),
        (lambda loop: loop["subgraphs"][0]["nodes"][7]["attrs"].clear(), "malformed: KeyError"),
    ],
)
def test_a_damaged_foreach_is_left_to_mxnet_with_the_reason(
    damage: Callable[[Any], None], reason: str
) -> None:
    graph = graph_of("gluon_foreach")
    loop = next(node for node in graph["nodes"] if node["op"] == "_foreach")
    damage(loop)
    (refusal,) = found(graph)
    assert isinstance(refusal, Refusal) and refusal.where == loop["name"]
    assert reason in refusal.reason


@pytest.mark.parametrize("width", [4, 9])
def test_a_cell_is_found_whatever_width_its_input_is_known_to_have(width: int) -> None:
    graph = graph_of("gluon_unrolled_stack")
    count = sum(isinstance(each, Region) for each in found(graph))
    data = next(node for node in graph["nodes"] if node["op"] == "null")
    data.setdefault("attrs", {})["__shape__"] = f"(3, 5, {width})"
    cells = [each for each in found(graph) if isinstance(each, Region)]
    assert len(cells) == count > 1


def test_a_projection_onto_a_vocabulary_takes_no_memory() -> None:
    graph = graph_of("gluon_unrolled_stack")
    dense = next(node for node in graph["nodes"] if node["name"] == "unrolled0_dense0_fwd")
    dense["attrs"]["num_hidden"] = str(2**26)  # 256 MB for each channel of its input
    data = next(node for node in graph["nodes"] if node["op"] == "null")
    data.setdefault("attrs", {})["__shape__"] = f"(3, 5, {2**40})"
    tracemalloc.start()
    try:
        assert any(isinstance(each, Region) for each in found(graph))
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
