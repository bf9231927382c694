"""Optimized modules under torch.compile, torch.export, torch.jit and torch.fx."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import (
    INPUT,
    UNITS,
    assert_close,
    gradients,
    make_batch,
    make_pair,
    make_sequences,
    one_thread,
)
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from onernn.adapters.torch import explain, optimize
from onernn.adapters.torch.plugin import onernn

__all__ = ["one_thread"]  # a fixture


class Tagger(nn.Module):
    def __init__(self, kind: Any, **more: Any) -> None:
        super().__init__()
        self.front = nn.Linear(INPUT, INPUT)
        self.rnn = kind(INPUT, UNITS, 2, bidirectional=True, **more)
        self.back = nn.Linear(2 * more.get("proj_size", UNITS), 3)

    def forward(self, x: torch.Tensor, states: Any = None) -> Any:
        y, last = self.rnn(self.front(x).relu(), states)
        return self.back(y), last


@pytest.fixture(autouse=True)
def apart(one_thread: None) -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "kind, more",
    [
        (nn.LSTM, {"dropout": 0.3}),
        (nn.LSTM, {"proj_size": 3}),
        (nn.GRU, {"batch_first": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_compiled_models_hold_ours_without_a_graph_break(
    kind: Any, more: dict[str, Any], dynamic: bool | None
) -> None:
    theirs = Tagger(kind, **more)
    ours, seen = optimize(theirs), []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append({str(node.target) for node in graph.graph.nodes})
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(ours, backend=backend, fullgraph=True, dynamic=dynamic)
    for T, N in ((5, 3), (7, 2), (9, 4)):
        x = torch.randn(T, N, INPUT)
        with torch.compiler.set_stance("default" if T < 9 else "fail_on_recompile"):
            torch.testing.assert_close(
                gradients(compiled, x), gradients(theirs, x), rtol=1e-4, atol=1e-4
            )
            with torch.no_grad():
                mine, wanted = compiled.eval()(x)[0], theirs.eval()(x)[0]
                torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
        compiled.train(), theirs.train()
    assert all(any("onernn.recurrent" in name for name in names) for names in seen)


def test_packed_sequences_are_traced() -> None:
    theirs = nn.GRU(INPUT, UNITS)
    compiled = torch.compile(optimize(theirs), backend="aot_eager", fullgraph=True)
    x = pack_sequence(make_sequences(), enforce_sorted=False)
    with torch.no_grad():
        assert_close(compiled(x), theirs(x))


def test_compiled_models_follow_their_parameters() -> None:
    theirs, ours = make_pair(nn.GRU)
    x = make_batch()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(x)
        for part, factor in ((lambda w: w, 3), (lambda w: w.data, 0.1)):
            for each in (theirs, ours):
                part(each.weight_hh_l0).mul_(factor)
            torch.testing.assert_close(compiled(x)[0], theirs(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name, value", [("bias", False), ("_flat_weights", None)])
def test_compiled_models_follow_written_weights_and_options(name: str, value: Any) -> None:
    theirs, x = nn.LSTM(4, 6), torch.randn(3, 2, 4)
    ours = optimize(theirs)
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad():
        before = compiled(x)[0]
        for module in (theirs, ours):
            flat = [weight * 2 for weight in module._flat_weights]
            setattr(module, name, flat if value is None else value)
        wanted = theirs(x)[0]
        assert not torch.allclose(before, wanted, atol=1e-3)
        torch.testing.assert_close(compiled(x)[0], wanted, rtol=2e-5, atol=2e-6)


def test_frozen_modules_that_share_a_parameter_are_told_apart_in_a_compiled_graph() -> None:
    theirs, x = nn.ModuleList([nn.GRU(INPUT, UNITS), nn.GRU(INPUT, UNITS)]), make_batch()
    theirs[1].weight_ih_l0 = theirs[0].weight_ih_l0
    ours = optimize(theirs, frozen=True)
    compiled = [torch.compile(each, backend="eager") for each in ours]
    with torch.no_grad():
        for _ in range(2):
            for mine, wanted in zip(compiled, theirs, strict=True):
                torch.testing.assert_close(mine(x), wanted(x), rtol=2e-5, atol=2e-6)
    assert explain(ours).count("onernn: LBR_GRU") == 2


def test_the_backend_traces_modules_where_others_were_optimized_before() -> None:
    code = """
import torch
from onernn.adapters.torch import optimize
from onernn.adapters.torch.plugin import onernn
optimize(torch.nn.GRU(2, 2))
compiled = torch.compile(torch.nn.LSTM(4, 6), backend=onernn, fullgraph=True)
assert compiled(torch.ones(3, 1, 4))[0].shape == (3, 1, 6)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_what_is_not_traced_runs_all_the_same(dtype: torch.dtype) -> None:
    theirs = nn.Sequential(nn.Linear(INPUT, INPUT), nn.GRU(INPUT, UNITS))
    x = make_batch()
    if dtype == torch.float64:
        theirs, x = theirs.double(), x.double()
    compiled = torch.compile(optimize(theirs), backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        mine, wanted = compiled(x)[0], theirs(x)[0]
    torch.testing.assert_close(mine, wanted, rtol=2**-5, atol=2**-5)


def test_modules_of_pytorch_break_graphs_as_before() -> None:
    optimize(nn.GRU(INPUT, UNITS))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU, or LSTM"):
        torch.compile(Tagger(nn.LSTM), fullgraph=True, backend="eager")(make_batch())


@pytest.mark.parametrize("options", [None, {"rest": "aot_eager"}])
def test_the_backend_runs_a_model_of_pytorch(options: Any) -> None:
    theirs = Tagger(nn.LSTM)
    x = make_batch()
    wanted = gradients(theirs, x)
    compiled = torch.compile(theirs, backend=onernn, fullgraph=True, options=options)
    torch.testing.assert_close(gradients(compiled, x), wanted, rtol=1e-4, atol=1e-4)
    assert "LSTM bidirectional_concat, f32" in explain(theirs)


def test_the_backend_has_its_name(repo: Path) -> None:
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["onernn"].partition(":")
    assert getattr(import_module(module), name) is onernn


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_pytorchs_operators(strict: bool) -> None:
    theirs = Tagger(nn.GRU, batch_first=True).eval()
    x = torch.randn(3, 5, INPUT)
    exported = torch.export.export(optimize(theirs), (x,), strict=strict)
    names = {str(node.target) for node in exported.graph.nodes}
    assert "aten.gru.input" in names and not any("onernn" in name for name in names)
    torch.testing.assert_close(exported.module()(x)[0], theirs(x)[0])


def test_torchscript_holds_pytorchs_operators() -> None:
    theirs = nn.Sequential(nn.Linear(INPUT, INPUT), nn.LSTM(INPUT, UNITS)).eval()
    ours, x = optimize(theirs), make_batch()
    for scripted in (torch.jit.script(ours), torch.jit.trace(ours, (x,))):
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file)(x)[0], theirs(x)[0])


def test_modules_are_leaves_of_fx() -> None:
    graph = torch.fx.symbolic_trace(optimize(nn.Sequential(nn.GRU(INPUT, UNITS)))).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"]
