"""Steps of cells in plain operators, and of states that an input resets, over time, as streams.

The steps are files of PyTorch and of Flax (tests/data/steps), or in ONNX's own words.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.command_line import onernn as command
from support.emitting import assert_computes, build
from support.onnx_models import parsed, read, session_of

import onernn
from onernn import Session, UnsupportedError, over_time
from onernn.engine.chunks import Stateful

STEPS = Path(__file__).parents[1] / "data" / "steps"
WIDTH, H = 3, 4
CLOSE = 2e-6  # float32 rounds sums of 8 numbers below 1; a step of these cells shrinks errors
RECORDED = {
    "flax_gru": "LBR_GRU",
    "flax_lstm": "LSTM",
    "flax_mgu": "LBR_GRU",
    "flax_nnx_gru": "LBR_GRU",
    "flax_nnx_lstm": "LSTM",
    "flax_optimized_lstm": "LSTM",
    "flax_policy": "LBR_GRU in a scan",
    "flax_simple": "RNN_TANH",
    "torch_gru": "LBR_GRU",
    "torch_lstm": "LSTM",
    "torch_policy": "LSTM in a scan",
    "torch_rnn": "RNN_TANH",
    "torch_stack": "RNN_TANH RNN_RELU",
}
GEMM_CELL = "p = Gemm <alpha = 1.0, beta = 1.0> (x, W, b) q = Gemm <transB = 1> (h, U, b)"
PACKED = """
    h0 = Gather (h, zeroth) c0 = Gather (h, first)
    rows = Unsqueeze (reset, ones)
    h1 = Where (rows, zero, h0) c1 = Where (rows, zero, c0)
    xh = Concat <axis = 1> (x, h1) g = Gemm (xh, K, k) i, j, f, o = Split <axis = 1> (g)
    more = Add (f, one) fs = Sigmoid (more) os = Sigmoid (o) si = Sigmoid (i) js = Tanh (j)
    kept = Mul (fs, c1) new = Mul (si, js) c2 = Add (kept, new) ct = Tanh (c2) h2 = Mul (ct, os)
    hu = Unsqueeze (h2, zeros) cu = Unsqueeze (c2, zeros) hN = Concat <axis = 0> (hu, cu)"""
WRITTEN = {
    # TensorFlow's cells project [x, h] at once; its LSTM adds 1 to the forget gate.
    "gemm": ("", f"{GEMM_CELL} a = Add (p, q) hN = Relu (a)", "RNN_RELU"),
    "joined": ("", "xh = Concat <axis = 1> (x, h) p = Gemm (xh, V, b) hN = Tanh (p)", "RNN_TANH"),
    "joined_h_first": (
        "",
        "hx = Concat <axis = -1> (h, x) p = MatMul (hx, V2) hN = Tanh (p)",
        "RNN_TANH",
    ),
    "joined_gru": (
        "",
        """
        xh = Concat <axis = 1> (x, h) g = Gemm (xh, V3, b3) s = Sigmoid (g)
        r, u = Split <axis = 1> (s) rh = Mul (r, h) xr = Concat <axis = 1> (x, rh)
        p = Gemm (xr, V, b) n = Tanh (p) uh = Mul (u, h) v = Sub (one, u) vn = Mul (v, n)
        hN = Add (uh, vn)""",
        "GRU",
    ),
    "joined_lstm": (", bool[N] reset", PACKED, "LSTM in a scan"),
    "two_meanings_of_h": (  # the state is as wide as the input, and comes first
        "",
        """
        y = Slice (x, zeros, ones, ones) z = Concat <axis = 1> (x, y)
        p = Gemm (z, U, b) q = Gemm (h, U2) a = Add (q, p) hN = Tanh (a)""",
        "RNN_TANH",
    ),
    "input_of_two_parts": (  # a Concat of inputs is one input
        ", float[N, 1] reset",
        """
        z = Concat <axis = 1> (x, reset) p = Gemm (z, G, d) q = Gemm (h, G2, d)
        pr, pz, pn = Split <axis = 1> (p) qr, qz, qn = Split <axis = 1> (q)
        ar = Add (pr, qr) r = Sigmoid (ar) az = Add (pz, qz) u = Sigmoid (az)
        rq = Mul (r, qn) an = Add (pn, rq) n = Tanh (an)
        v = Sub (one, u) vn = Mul (v, n) uh = Mul (u, h) hN = Add (vn, uh)""",
        "LBR_GRU",
    ),
    "reset_to_a_learned_state": (
        ", bool[N, 1] reset",
        f"g = Where (reset, b, h) {GEMM_CELL.replace('(h,', '(g,')} a = Add (p, q) hN = Tanh (a)",
        " in a scan",
    ),
    "reset_by_a_branch": (
        ", float[1] reset",
        f"""
        is = Cast <to = 9> (reset) one_is = Squeeze (is)
        g = If (one_is) <then_branch = t () => (float[N, 4] gone) {{ gone = Sub (h, h) }},
                        else_branch = e () => (float[N, 4] kept) {{ kept = Identity (h) }}>
        {GEMM_CELL.replace("(h,", "(g,")} a = Add (p, q) hN = Tanh (a)""",
        " in a scan",
    ),
    "scaled_by_an_input": (
        ", float[N, 1] reset",
        f"{GEMM_CELL} q2 = Mul (q, reset) a = Add (p, q2) hN = Tanh (a)",
        " in a scan",
    ),
}


@cache
def proto_of(name: str) -> onnx.ModelProto:
    if name in RECORDED:
        return onnx.load(STEPS / name / "model.onnx")
    rng = np.random.default_rng(0)
    sizes = {
        "W": (WIDTH, H),
        "U": (H, H),
        "U2": (H, H),
        "b": (H,),
        "V": (WIDTH + H, H),
        "V2": (WIDTH + H, H),
    }
    sizes |= {"V3": (WIDTH + H, 2 * H), "b3": (2 * H,), "K": (WIDTH + H, 4 * H), "k": (4 * H,)}
    sizes |= {"G": (H, 3 * H), "G2": (H, 3 * H), "d": (3 * H,)}
    constants = {key: rng.uniform(-0.6, 0.6, size).astype("f4") for key, size in sizes.items()}
    constants |= {"one": np.float32(1), "zero": np.float32(0), "zeros": np.array([0])}
    constants |= {"ones": np.array([1]), "zeroth": np.array(0), "first": np.array(1)}
    more, body, _ = WRITTEN[name]
    state = "float[2, N, 4]" if "h0 = Gather" in body else "float[N, 4]"
    text = f"(float[N, 3] x{more}, {state} h) => ({state} hN) {{ {body} }}"
    read_names = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return parsed(text, {key: array for key, array in constants.items() if key in read_names})


def in_float64(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with float64 in the place of float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    graphs = [wide.graph]
    for graph in graphs:
        del graph.value_info[:]
        tensors = [*graph.initializer]
        for node in graph.node:
            for attribute in node.attribute:
                graphs += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
                tensors += [attribute.t] if attribute.type == onnx.AttributeProto.TENSOR else []
        for tensor in tensors:
            if tensor.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(tensor).astype(np.float64)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide


def states_of(proto: onnx.ModelProto) -> dict[str, str]:
    outputs = {value.name for value in proto.graph.output}
    inputs = [value.name for value in proto.graph.input]
    return {name: f"{name}N" for name in inputs if f"{name}N" in outputs}


def make_feed(proto: onnx.ModelProto, steps: int, batch: int) -> dict[str, np.ndarray]:
    rng, feed = np.random.default_rng(10 * steps + batch), dict[str, np.ndarray]()
    for value in proto.graph.input:
        given = value.type.tensor_type
        shape = [size.dim_value or batch for size in given.shape.dim]
        shape = shape if value.name in states_of(proto) else [steps, *shape]
        array = rng.uniform(-1, 1, shape)
        made = array < -0.4 if value.name == "reset" else array
        feed[value.name] = made.astype(bool if given.elem_type == TensorProto.BOOL else "f4")
    return feed


def step_after_step(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns each output of each step, as ONNX Runtime computes it in float64."""
    session, states = session_of(in_float64(proto)), states_of(proto)
    names = [value.name for value in proto.graph.output]
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feed.items()}
    state, made = {name: wide.pop(name) for name in states}, []
    for t in range(len(feed["x"])):
        frame = {name: array[t] for name, array in wide.items()}
        made.append(dict(zip(names, session.run(names, frame | state), strict=True)))
        state = {name: made[-1][after] for name, after in states.items()}
    return {name: np.stack([each[name] for each in made]) for name in names}


def assert_whole(got: dict[str, Any], want: dict[str, np.ndarray], states: dict[str, str]) -> None:
    assert got.keys() == want.keys()
    for name, steps in want.items():
        expected = steps[-1] if name in states.values() else steps
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", RECORDED)
def test_steps_give_over_time_what_their_framework_recorded(name: str) -> None:
    states = states_of(proto_of(name))
    with np.load(STEPS / name / "frames.npz") as arrays:
        feed = {k.partition("__")[2]: a for k, a in arrays.items() if not k.startswith("out__")}
        want = {k.removeprefix("out__"): a for k, a in arrays.items() if k.startswith("out__")}
    assert want.keys() > set(states.values()) or len(want) == len(states)
    assert_whole(Session(over_time(read(proto_of(name)), states)).run(feed), want, states)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", [*RECORDED, *WRITTEN])
def test_steps_give_over_time_what_onnx_runtime_gives_step_after_step(
    name: str, tmp_path: Path
) -> None:
    proto = proto_of(name)
    states, step = states_of(proto), read(proto)
    whole = over_time(step, states)
    onernn.convert(whole, tmp_path / "whole.onnx")
    onernn.compile_model(whole, tmp_path / "whole.onernn")
    session, compiled = Session(whole), Session(tmp_path / "whole.onernn")
    written = session_of(onnx.load(tmp_path / "whole.onnx"))
    names = [value.name for value in written.get_outputs()]
    for steps in (1, 5, 33):
        for batch in (1, 3):
            feed = make_feed(proto, steps, batch)
            want = step_after_step(proto, feed)
            assert_whole(session.run(feed), want, states)
            assert_whole(compiled.run(feed), want, states)
            assert_whole(dict(zip(names, written.run(names, feed), strict=True)), want, states)
    nothing = {name: array if name in states else array[:0] for name, array in feed.items()}
    for name, after in states.items():
        np.testing.assert_array_equal(session.run(nothing)[after], feed[name])


@pytest.mark.parametrize("name", [*RECORDED, *WRITTEN])
def test_explain_names_the_cell_and_why_there_is_a_scan(name: str) -> None:
    expected = RECORDED[name] if name in RECORDED else WRITTEN[name][2]
    cells, scan, _ = expected.partition(" in a scan")
    session = Session(over_time(read(proto_of(name)), states_of(proto_of(name))))
    assert [each.cell for each in session.explained] == cells.split()
    assert ("frame after frame" in session.explain()) == bool(scan)
    assert ("Scan" in {node.op for node in session.graph.nodes}) == bool(scan)


@pytest.mark.parametrize("name", [*RECORDED, *sorted(WRITTEN.keys() - {"reset_by_a_branch"})])
def test_streams_of_steps_give_what_onnx_runtime_gives(name: str) -> None:
    proto = proto_of(name)
    states, feed = states_of(proto), make_feed(proto, 5, 2)
    frames = [key for key in feed if key not in states]
    turned = feed | {key: feed[key][::-1] for key in frames}
    streams = Session(read(proto)).streams(2, states, first={key: feed[key] for key in states})
    opened = [(streams.open(), each) for each in (feed, turned)]
    for t in range(5):
        for stream, each in opened:
            streams.push(stream, {key: each[key][t] for key in frames})
    for stream, each in opened:
        want, got = step_after_step(proto, each), streams.pull(stream)
        assert got[0].keys() == (want.keys() - states.values() or want.keys())
        for key in got[0]:
            made = np.stack([result[key] for result in got])
            np.testing.assert_allclose(made, want[key], atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", ["torch_rnn", "flax_lstm", "torch_stack", "joined"])
def test_streams_run_the_cells_as_layers(name: str) -> None:
    graph = Stateful.of_names(read(proto_of(name)), states_of(proto_of(name))).graph
    assert {node.op for node in graph.nodes} <= {"Rnn", "Unsqueeze", "Squeeze", "Gemm", "Relu"}


@pytest.mark.parametrize("name", ["flax_policy", "torch_policy", "reset_to_a_learned_state"])
def test_a_reset_that_never_comes_leaves_a_layer(name: str) -> None:
    proto = proto_of(name)
    states, feed = states_of(proto), make_feed(proto, 5, 3)
    feed["reset"] = np.zeros_like(feed["reset"])
    want, never = step_after_step(proto, feed), feed.pop("reset")[0]
    whole = over_time(read(proto), states, given={"reset": never})
    assert "Scan" not in {node.op for node in whole.nodes} and not whole.notes
    assert_whole(Session(whole).run(feed), want, states)


def test_generated_code_resets_states(tmp_path: Path) -> None:
    models = {
        name: over_time(read(proto_of(name)), states_of(proto_of(name)))
        for name in ("torch_policy", "flax_policy", "reset_by_a_branch")
    }
    for name, emitted in build(models, tmp_path).items():
        proto = proto_of(name)
        feed = make_feed(proto, 5, 3)
        want = step_after_step(proto, feed)
        ends = states_of(proto).values()
        last = {key: each[-1] if key in ends else each for key, each in want.items()}
        narrow = {key: each.astype(np.float32) for key, each in last.items()}
        assert_computes(emitted, feed, narrow, atol=CLOSE)


def test_the_command_notes_a_scan(tmp_path: Path) -> None:
    step = STEPS / "torch_policy" / "model.onnx"
    done = command("convert", step, tmp_path / "m.onnx", "--over-time", "h=hN", "--over-time=c=cN")
    assert done.returncode == 0 and "a scan runs h, c frame after frame" in done.stderr


@pytest.mark.parametrize(
    "more, body, told",
    [
        (", float reset", "g = Mul (h, reset) a = Add (g, x)", "depends on reset"),
        ("", "a = Concat <axis = 1> (x, h)", "expected the type of 'h'"),
        ("", "a = Cast <to = 10> (h)", "expected the type of 'h'"),
    ],
)
def test_states_that_frames_cannot_hand_on_are_refused(more: str, body: str, told: str) -> None:
    text = f"(float[N, 3] x, float[N, 3] h{more}) => (hN) {{ {body} hN = Identity (a) }}"
    with pytest.raises(UnsupportedError, match=told):
        over_time(read(parsed(text)), {"h": "hN"})
