"""Rows of tables beside each row alone, through the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.graphs import new_nodes, rnn_node
from support.scoring import reasons_of, session

import onernn
from onernn import Graph
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.ragged import Ragged
from onernn.scoring.scorer import REJECTED, Scorer, _differ

LETTERS = 26


@pytest.fixture(scope="module")
def tagger() -> onernn.Session:
    return session()


def small(nodes: str, outputs: str, *inputs: Value, **constants: Any) -> Graph:
    """A graph of these nodes, see `new_nodes`."""
    values = tuple(map(Value, outputs.split()))
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    return Graph("g", inputs, values, new_nodes(nodes), arrays)


def rows_of(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, LETTERS, n).tolist() for n in rng.integers(0, longest + 1, count)]


def numbers(column: Any) -> np.ndarray:
    """All numbers of a column, in order."""
    array = column.combine_chunks()
    while pa.types.is_list(array.type):
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False)


def check_rows(session: onernn.Session, rows: dict[str, list[Any]], **options: Any) -> None:
    """Each row of a table has the outputs that it has alone. Rows: arrays, lists of arrays of two
    levels, or numbers.
    """
    axis = options.get("batch_axis", 0)

    def listed(row: Any) -> Any:
        return [*map(listed, row)] if isinstance(row, list) else np.asarray(row).tolist()

    lists = {name: listed(each) for name, each in rows.items()}
    scored = Scorer(session, **options)(pa.table(lists))
    assert reasons_of(scored) == {}
    assert scored.select(list(rows)).to_pydict() == lists
    for at in range(scored.num_rows):
        feed: dict[str, Any] = {}
        for value in session.inputs:
            row = rows[value.name][at]
            if isinstance(row, list):
                feed[value.name] = Ragged.from_lod(
                    np.concatenate(row), [[0, len(row)], np.cumsum([0, *map(len, row)])]
                )
            elif value.lod_depth:
                feed[value.name] = Ragged.from_list([row])
            else:
                feed[value.name] = np.expand_dims(row, min(axis, np.ndim(row)))
        for name, want in session.run(feed).items():
            got = numbers(scored[name].slice(at, 1))
            wanted = want.data if isinstance(want, Ragged) else np.asarray(want)
            np.testing.assert_allclose(got, wanted.ravel(), rtol=1e-4, atol=1e-5)


def normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    "model, rows, options",
    [
        (
            "paddle/fc_gru_h0_rev0",
            {"x": normal((3, 24), (0, 24), (5, 24), (3, 24)), "h0": normal(*[(32,)] * 4)},
            {},
        ),
        (
            "paddle/two_levels",
            {
                "x": [normal((2, 4), (1, 4)), normal((3, 4), (0, 4))],
                "one": normal((3, 1), (3, 1)),  # lends its offsets: one for each word of x
            },
            {},
        ),
        (
            "onnx/torch_tagger/model.onnx",  # dense sequences: those of one length share a batch
            {"in0": [np.arange(n) % 5 for n in (4, 2, 4, 7, 2, 4)]},
            {},
        ),
        ("onnx/torch_gru_dynamic/model.onnx", {"in0": normal(*[(4, 6)] * 5)}, {"batch_axis": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_have_the_outputs_that_they_have_alone(
    data: Path, model: str, rows: dict[str, list[Any]], options: dict[str, Any]
) -> None:
    check_rows(onernn.Session(data / model, threads=1), rows, **options)


def test_lists_become_ragged_batches_and_outputs_lists_in_the_same_order(
    tagger: onernn.Session,
) -> None:
    rows = [np.array(row, np.int64) for row in rows_of(200, 40)]
    check_rows(tagger, {"letters": rows}, words=100)


def test_batches_are_filled_by_words_of_rows_of_similar_length(
    tagger: onernn.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    run = tagger.run
    monkeypatch.setattr(
        tagger, "run", lambda feed: ran.append(feed["letters"].lengths) or run(feed)
    )
    scorer = Scorer(tagger, words=100)
    scorer(pa.table({"letters": [[1], [2]]}))  # by itself and in a batch, once
    ran.clear()
    scorer(pa.table({"letters": [*rows_of(300, 40), [1] * 150]}))
    assert sum(map(len, ran)) == 301 and ran[-1].tolist() == [150]
    assert all(50 < sum(lengths) <= 100 for lengths in ran[:-2])
    work = [max(n, 1) for lengths in ran for n in lengths.tolist()]
    assert work == sorted(work)


@pytest.mark.parametrize("axis", [1, 5])
def test_rows_are_on_the_last_axis_where_an_input_has_fewer(axis: int) -> None:
    graph = small("y = Relu x", "y", Value("x", "float32", (3, None)))
    scored = Scorer(graph, batch_axis=axis)(pa.table({"x": [[1.0, -1, 2], [-3, 4, 5], [0, 0]]}))
    assert scored["y"].to_pylist() == [[1, 0, 2], [0, 4, 5], None]
    assert reasons_of(scored) == {2: "column 'x': expected lists of 3 values, got 2"}


def test_columns_and_outputs_are_named_and_others_left_out(tagger: onernn.Session) -> None:
    (_, tags) = (value.name for value in tagger.graph.outputs)
    table = pa.table({"text": rows_of(5, 9)})
    scored = Scorer(tagger, {"letters": "text"}, {tags: "tags"})(table)
    assert scored.column_names == ["text", "tags", "rejected"]
    assert scored.schema.field("tags").type == pa.list_(pa.int64())


@pytest.mark.parametrize("words", [1, 7, 10**6])
def test_bad_rows_are_rejected_singly(tagger: onernn.Session, words: int) -> None:
    rows: list[Any] = rows_of(50, 12)
    want = Scorer(tagger)(pa.table({"letters": rows})).column(2).to_pylist()
    rows[3], rows[20], rows[21], rows[49] = None, [1, None], [0, 10**9], [-1]
    scored = Scorer(tagger, words=words)(pa.table({"letters": rows}))
    bad = [3, 20, 21, 49]
    reasons = reasons_of(scored)
    assert list(reasons) == bad and "null" in reasons[3] and "null" in reasons[20]
    assert "1000000000" in reasons[21] and "-1" in reasons[49]
    expected = [None if row in bad else each for row, each in enumerate(want)]
    assert scored.column(2).to_pylist() == expected


def test_an_empty_table_and_one_of_rejected_rows_have_the_same_columns(
    tagger: onernn.Session,
) -> None:
    scorer = Scorer(tagger)
    full = scorer(pa.table({"letters": [[1, 2], [3]]}))
    kind = pa.list_(pa.int64())
    none = scorer(pa.table({"letters": pa.array([], kind)}))
    bad = scorer(pa.table({"letters": pa.array([None, [99]], kind)}))
    assert none.schema == full.schema == bad.schema
    assert len(reasons_of(bad)) == 2 and bad.column(1).to_pylist() == [None, None]


def test_features_that_do_not_fit_are_rejected_with_the_reason(data: Path) -> None:
    session = onernn.Session(data / "paddle" / "fc_gru_h0_rev0", threads=1)
    x = [[[1.0] * 24], [[1.0] * 23], [[1.0] * 24, [2.0] * 23], [[1.0] * 24]]
    h0 = [[1e300] * 32, [0.0] * 32, [0.0] * 32, [np.nan] * 32]
    reasons = reasons_of(Scorer(session)(pa.table({"x": x, "h0": h0})))
    assert list(reasons) == [0, 1, 2, 3] and "expected float32, got 1e+300" in reasons[0]
    assert "expected lists of 24 values, got 23" in reasons[1]
    assert "one length, got 23 and 24" in reasons[2] and "NaN" in reasons[3]


def test_rows_on_another_axis_are_refused_until_it_is_told(data: Path) -> None:
    session = onernn.Session(data / "onnx" / "torch_gru_dynamic" / "model.onnx", threads=1)
    with pytest.raises(UnsupportedError, match="--batch-axis"):
        Scorer(session)(pa.table({"in0": np.zeros((5, 4, 6)).tolist()}))


def test_models_of_a_fixed_number_of_rows_get_as_many(data: Path) -> None:
    session = onernn.Session(data / "onnx" / "torch_packed_gru" / "model.onnx", threads=1)
    lengths = session.graph.inputs[1]
    assert lengths.shape == (2,)
    name = session.graph.outputs[0].name
    (x,) = normal((3, 4, 6))  # (N, T, 6)
    table = pa.table({"in0": x.tolist(), "in1": [4, 4, 4]})
    got = Scorer(session, outputs={name: "y"}, batch_axis=1)(table)["y"].to_pylist()
    for row, result in zip(x, got, strict=True):
        given = {"in0": np.stack([row, row], axis=1), "in1": np.array([4, 4])}
        want = np.asarray(session.run(given)[name])[:, 0]
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "row, kind",
    [(1, "int64"), ("1 2", "string"), (["a"], "list"), ({"a": 1}, "struct"), ([{"a": 1}], "list")],
)
def test_columns_that_no_row_can_have_are_refused(
    tagger: onernn.Session, row: Any, kind: str
) -> None:
    with pytest.raises(ShapeError, match=f"column 'letters': expected .*, got {kind}"):
        Scorer(tagger)(pa.table({"letters": [row]}))
    with pytest.raises(ShapeError, match="expected column 'letters'"):
        Scorer(tagger)(pa.table({"other": [row]}))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3]], pa.large_list(pa.int32())),
        pa.array([[1, 2], [3]], pa.list_view(pa.uint8())),
        pa.array([[9, 9], [1, 2], [3]]).slice(1),
        pa.chunked_array([pa.array([[1, 2]]), pa.array([[3]])]),
        pa.array([[1.0, 2.0], [3.0]]),
    ],
    ids=lambda column: str(column.type),
)
def test_every_kind_of_list_is_read(tagger: onernn.Session, column: Any) -> None:
    wanted = Scorer(tagger)(pa.table({"letters": [[1, 2], [3]]})).column(2).to_pylist()
    assert Scorer(tagger)(pa.table({"letters": column})).column(2).to_pylist() == wanted


NUMBERS = pa.array([[1, 2], [3], None, [None]])


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array([[1, 2], [3], [None]])),
        pa.ListArray.from_arrays(
            pa.array([0, 2, 3, 3, 4]),
            pa.array([1, 2, 3, None]).dictionary_encode(),
            mask=pa.array([False, False, True, False]),
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_dictionaries_are_read_and_their_nulls_rejected(
    tagger: onernn.Session, column: Any
) -> None:
    got, wanted = (Scorer(tagger)(pa.table({"letters": each})) for each in (column, NUMBERS))
    assert got.column(1).to_pylist() == wanted.column(1).to_pylist()
    assert [*reasons_of(got)] == [2, 3]


TAGS = "save_infer_model/scale_1.tmp_0"


@pytest.mark.parametrize(
    "names, column, named",
    [
        ({"inputs": {"words": "text"}}, "letters", "input 'words': expected one of letters"),
        ({"outputs": {"tags": "tags"}}, "letters", "output 'tags': expected one of"),
        ({"outputs": {TAGS: "letters"}}, "letters", "column 'letters'"),
        ({"inputs": {"letters": REJECTED}}, REJECTED, "column 'rejected'"),
        ({"outputs": {TAGS: REJECTED}}, "letters", "column 'rejected'"),
    ],
)
def test_unknown_names_and_taken_columns_are_refused(
    tagger: onernn.Session, names: dict[str, Any], column: str, named: str
) -> None:
    with pytest.raises(ShapeError, match=named):
        Scorer(tagger, **names)(pa.table({column: [[1]]}))


@pytest.mark.parametrize("column", [pa.nulls(3), pa.array([None] * 3, pa.list_(pa.int64()))])
def test_a_batch_of_nothing_but_nulls_is_rejected_row_by_row(
    tagger: onernn.Session, column: pa.Array
) -> None:
    scored = Scorer(tagger)(pa.table({"letters": column}))
    assert scored.num_rows == 3 and scored.column(1).null_count == 3
    assert scored[REJECTED].to_pylist() == ["column 'letters': null"] * 3


def time_major(tags: bool = False, steps: int | None = None) -> Graph:
    """A GRU over (T, N, 3), and as integers the largest of each step."""
    spec = onernn.RnnSpec(onernn.Cell.GRU, 3, 4)
    rnn = rnn_node("h = Rnn x", spec)
    inputs = (Value("x", "float32", (steps, None, 3)),)
    nodes = (rnn, *new_nodes("y = ArgMax h axis=2 keepdims=0" if tags else ""))
    return Graph("g", inputs, (Value("y" if tags else "h"),), nodes, {})


@pytest.mark.parametrize("empty", [0, 3], ids=["", "empty rows first"])
@pytest.mark.parametrize("tags", [False, True])
def test_a_layer_along_the_rows_is_refused_whatever_rows_come(tags: bool, empty: int) -> None:
    rows = [[]] * empty + [x.tolist() for x in normal((5, 3), (5, 3), (7, 3), (7, 3))]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float32())))})
    with pytest.raises(UnsupportedError, match=r"'h' \(Rnn\).* axis 1"):
        Scorer(time_major(tags))(table)
    with pytest.raises(UnsupportedError, match="words=1"):
        Scorer(time_major(tags))(table.slice(0, 1))  # also if one row shows nothing
    check_rows(onernn.Session(time_major(tags)), {"x": normal((5, 3), (7, 3))}, batch_axis=1)


def sample_only(axis: int) -> Graph:
    """A model of integers for which no rule shows whether rows, axis 0, are independent."""
    nodes = """
        chosen = Einsum x equation='...->...'
        top = ReduceMax chosen axis
        y = Sub x top
    """
    return small(nodes, "y", Value("x", "int64", (None, 3)), axis=[axis])


def test_where_no_rule_decides_rows_of_each_window_are_compared_as_integers_exactly() -> None:
    rng = np.random.default_rng(1)
    same = pa.table({"x": [[1, 2, 3]] * 50})
    others = pa.table({"x": rng.integers(0, 10**6, (400, 3)).tolist()})
    scorer = Scorer(sample_only(0))
    scorer(same)  # equal rows show nothing: later ones do
    with pytest.raises(UnsupportedError, match=r"Einsum.* row \d+ "):
        scorer(others)
    alone = Scorer(sample_only(0), words=1)(others)
    assert alone["y"].to_pylist() == [[0, 0, 0]] * 400
    want = [[each - max(row) for each in row] for row in others["x"].to_pylist()]
    assert Scorer(sample_only(1))(others)["y"].to_pylist() == want


def test_a_row_that_runs_in_a_batch_only_is_an_error_of_onernn() -> None:
    """Two rows are compared by position; a single one has no second."""
    nodes = """
        other = Compress x second axis=0
        row = Gather other first
        y = Add x row
    """
    value = Value("x", "float32", (None, 3))
    graph = small(nodes, "y", value, second=[False, True], first=0)
    with pytest.raises(UnsupportedError, match="row 0 runs only in a batch"):
        Scorer(graph)(pa.table({"x": [[1.0, 2, 3]] * 2}))


def two_ragged(nodes: str, outputs: str) -> Graph:
    x, y = (Value(name, "float32", (None, 1), 1) for name in "xy")
    return small(nodes, outputs, x, y)


MEETING = {
    "rule": "s = Add x y",
    "unknown": """
        p = SequencePad x
        n = SequenceLengths x
        u = SequenceUnpad p n
        v = SequenceLike u x
        s = Add v y
    """,
}


@pytest.mark.parametrize("meet", ["rule", "unknown"])
def test_lengths_that_cancel_out_do_not_touch_the_rows_between_them(meet: str) -> None:
    x = [[1.0, 2, 3], [4.0, 5], [6.0], [7.0, 8, 9], [1.0]]
    y = [[1.0], [10.0, 20], [30.0], [40.0, 50, 60], [1.0, 2, 3]]
    scored = Scorer(two_ragged(MEETING[meet], "s"))(pa.table({"x": x, "y": y}))
    assert scored["s"].to_pylist()[1:4] == [[14, 25], [36], [47, 58, 69]]
    assert list(reasons_of(scored)) == ([0, 4] if meet == "rule" else [4])
    if meet == "unknown":  # what the model makes of the row by itself: y is one step, and stretched
        assert scored["s"].to_pylist()[0] == [2, 3, 4]


def test_inputs_that_do_not_meet_may_have_other_lengths_and_share_a_batch() -> None:
    nodes = "\n".join(f"{n}0 = SequencePool {n} kind='sum'" for n in "xy")
    scored = Scorer(two_ragged(nodes, "x0 y0"))(
        pa.table({"x": [[1.0, 2], [3.0]], "y": [[4.0], [5.0, 6, 7]]})
    )
    assert scored["x0"].to_pylist() == [3, 3] and scored["y0"].to_pylist() == [4, 18]
    assert reasons_of(scored) == {}


@pytest.mark.parametrize("op", ["Relu", "Dropout"])
def test_a_column_of_unknown_type_has_that_of_its_input_and_is_never_null(op: str) -> None:
    none = pa.table({"x": pa.array([], pa.list_(pa.float32()))})
    scored = Scorer(small(f"y = {op} x", "y", Value("x")))(none)
    assert scored.schema.field("y").type == pa.list_(pa.float32())


def test_an_output_of_unknown_rank_needs_its_type_if_no_row_was_scored() -> None:
    nodes = """
        y = Compress x every axis=1
        z = Reshape y shape
    """
    inputs = Value("x", "float32", (None, 3)), Value("shape", "int64", (None,))
    graph = small(nodes, "z", *inputs, every=[True] * 3)
    none = pa.table({"x": [[1.0, 2, 3]], "shape": [3]}).slice(0, 0)
    for types, error, named in (
        ({}, UnsupportedError, "'z'.*--output-type"),
        ({"z": "lists"}, UnsupportedError, "'lists'"),
        ({"q": "float"}, ShapeError, "'q'"),
    ):
        with pytest.raises(error, match=named):
            Scorer(graph, types=types, words=1)(none)
    said = Scorer(graph, types={"z": "list<float>"}, words=1)
    assert said(none).schema.field("z").type == pa.list_(pa.float32())


@pytest.mark.parametrize(
    "one, other, differ",
    [
        ([10**6], [10**6 + 1], True),
        ([1e6], [1e6 + 1], False),
        ([1.0, np.nan], [1.0, np.nan], False),
        ([1.0, np.nan], [1.0, 0], True),
        ([1.0], [1.0, 1], True),
        ([1.0], [1.01], True),
        ([True], [False], True),
    ],
)
def test_only_floats_may_differ_by_rounding(one: Any, other: Any, differ: bool) -> None:
    assert _differ(np.array(one), np.array(other), 1e-3) == differ


def test_a_compiled_file_is_refused_by_name(tmp_path: Path) -> None:
    onernn.compile_model(time_major(steps=4), tmp_path / "m.onernn")
    with pytest.raises(UnsupportedError, match=r"m\.onernn: a compiled file"):
        Scorer(tmp_path / "m.onernn")


def test_rows_of_u8_do_not_share_a_scale(tmp_path: Path) -> None:
    """oneDNN takes one scale from a whole batch; such a layer runs on the kernels here."""
    (x,) = normal((5, 3))
    rows = [(x * scale).tolist() for scale in (0.01, 1, 30)]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float32())))})
    session = onernn.Session(time_major(steps=5), dtype="int8-dynamic", threads=1)
    together, apart = (
        Scorer(session, batch_axis=1, words=words)(table)["h"].to_pylist() for words in (10**4, 1)
    )
    np.testing.assert_allclose(together, apart, rtol=1e-6, atol=1e-7)
