"""The inputs and outputs of OpenVINO's models, from the .xml: documented as IR, version 11."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import Malformed, described, file_bytes
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import UNSUPPORTED, Graph, Node, Value

_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "boolean": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_DIGITS = 18  # of a size below 2**63
_TAG, _ATTRIBUTE = 160, 200
"""Bytes of an element and of an attribute, as Python has them."""
_ADVICE = (
    "OpenVINO's operators are not read; load the ONNX file that it was made from, or take it as a"
    " reference that OpenVINO runs: onernn verify MODEL --against openvino:{}"
)


class _WithoutEntities(ElementTree.TreeBuilder):
    """A few entities may become gigabytes of text; OpenVINO writes none."""

    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type; OpenVINO writes none")


def read_face(path: StrPath) -> Graph:
    """A graph of one refused node an output: what goes in and comes out is known, no more.

    Raises `ModelFormatError` for a file that is none of OpenVINO's.
    """
    data = file_bytes(path)
    texts = 4 * len(data)  # wide, where it has one wide character, as names and as text
    loading().take(_TAG * data.count(b"<") + _ATTRIBUTE * data.count(b"=") + texts, "the XML")
    try:
        net = ElementTree.fromstring(data, ElementTree.XMLParser(target=_WithoutEntities()))
    except (ElementTree.ParseError, UnicodeError, ValueError, LookupError) as error:
        raise ModelFormatError(f"no XML: {error}", path) from error
    if net.tag != "net" or net.find("layers") is None:
        raise ModelFormatError(f"expected OpenVINO's <net> of <layers>, got <{net.tag}>", path)
    layers = {each.get("id", ""): each for each in net.iterfind("layers/layer")}
    fed = {
        edge.get("to-layer"): layers.get(edge.get("from-layer", ""))
        for edge in net.iterfind("edges/edge")
    }
    with described("not a model of OpenVINO", path):
        inputs = tuple(_input(each) for each in layers.values() if each.get("type") == "Parameter")
    names = [
        each.get("output_names") or _made(fed.get(key)) or each.attrib.get("name", "")
        for key, each in layers.items()
        if each.get("type") == "Result"
    ]
    taken = {each.name for each in inputs}
    outputs = [name if name not in taken else f"{name}/result" for name in map(_first, names)]
    reason = {"reason": _ADVICE.format(Path(path).name)}
    nodes = tuple(
        Node(UNSUPPORTED, tuple(v.name for v in inputs), (name,), reason)
        for name in dict.fromkeys(outputs)
    )
    return Graph(str(path), inputs, tuple(Value(each) for each in outputs), nodes, {})


def _made(layer: Element | None) -> str:
    """The name of what a layer gives, where it gives one value; older files have it only there."""
    ports = [] if layer is None else layer.findall("output/port")
    return ports[0].get("names", "") if len(ports) == 1 else ""


def _input(layer: Element) -> Value:
    data, port = layer.find("data"), layer.find("output/port")
    attributes = {} if data is None else data.attrib
    name = "" if port is None else port.get("names", "")
    sizes = [each.strip() for each in attributes.get("shape", "...").split(",") if each.strip()]
    shape = None
    if "..." not in sizes:
        if any(len(each) > _DIGITS for each in sizes):
            raise Malformed(f"input {name!r:.100}: impossible shape {sizes!s:.100}")
        shape = tuple(int(each) if each.isdecimal() else None for each in sizes)
    dtype = _DTYPES.get(attributes.get("element_type", ""))
    return Value(_first(name or layer.get("name", "")), dtype, shape)


def _first(names: str) -> str:
    """The first of names between commas; a comma in a name has a backslash before it."""
    return re.sub(r"\\(.)", r"\1", re.split(r"(?<!\\),", names)[0])
