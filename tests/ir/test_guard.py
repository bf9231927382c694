"""Errors that nobody raised on purpose: ours, with file and node; as they are where asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import new_node

from onernn import Graph, OnernnError, Session, UnforeseenError, fuse
from onernn.cli import main
from onernn.engine.kernels import KERNELS
from onernn.fuse_passes.rewriting import Pass, rewrite
from onernn.ir.errors import guard, naming
from onernn.ir.graph import Node, Value

NODE = new_node("Relu", "x", "y")
MODEL = Graph("model.onnx", (Value("x"),), (Value("y"),), (NODE,), {})
KINDS = [
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
]


def failing(kind: type[Exception]) -> Pass:
    """Returns a pass with a mistake in it."""

    @rewrite("failing")
    def fail(graph: Graph, node: Node) -> None:
        raise kind("inside")

    return fail


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONERNN_RAISE")


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pass_raises_names_the_file_the_pass_and_the_node(kind: type[Exception]) -> None:
    with pytest.raises(
        UnforeseenError, match=r"^model\.onnx: pass failing, node 'y' \(Relu\): "
    ) as e:
        fuse(MODEL, (failing(kind),))
    assert isinstance(e.value.__cause__, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_in_tests_it_comes_out_as_it_is(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="inside") as caught:
        fuse(MODEL, (failing(kind),))
    assert not isinstance(caught.value, OnernnError)


@pytest.mark.usefixtures("as_for_users")
def test_what_a_kernel_raises_names_the_file_and_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(node: Node, x: Any) -> Any:
        raise AttributeError("inside")

    monkeypatch.setitem(KERNELS, "Relu", kernel)
    session = Session(MODEL, backend="reference")
    with pytest.raises(UnforeseenError, match=r"^model\.onnx: node 'y' \(Relu\): .*inside"):
        session.run({"x": np.zeros(2)})


@pytest.mark.usefixtures("as_for_users")
def test_guards_in_guards_tell_the_file_and_the_node() -> None:
    with pytest.raises(UnforeseenError, match=r"^file: node 'y' \(Relu\): KeyError") as caught:
        with guard(lambda: "file"), naming(NODE):
            raise KeyError("inside")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.usefixtures("as_for_users")
def test_the_command_line_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise AttributeError("inside")

    monkeypatch.setattr("onernn.cli.app", broken)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("onernn: internal error: AttributeError: inside")
