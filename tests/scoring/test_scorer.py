"""Rows of tables beside each row alone, through the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import onernn
from onernn import Graph
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import Ragged
from onernn.scoring.scorer import REJECTED, Scorer

LETTERS = 26


@pytest.fixture(scope="module")
def tagger(repo: Path) -> onernn.Session:
    return onernn.Session(repo / "examples" / "segmenter", threads=1)


def rows_of(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, LETTERS, n).tolist() for n in rng.integers(0, longest + 1, count)]


def alone(session: onernn.Session, rows: list[list[int]], output: int = 1) -> list[Any]:
    """Each row by itself."""
    (value,) = session.graph.inputs
    name = session.graph.outputs[output].name
    out = []
    for row in rows:
        given = Ragged.from_list([np.array(row, np.int64)])
        out.append(session.run({value.name: given})[name].data)  # type: ignore[union-attr]
    return out


def reasons_of(scored: pa.Table) -> dict[int, str]:
    """Why rows were rejected, by their number."""
    return {row: why for row, why in enumerate(scored[REJECTED].to_pylist()) if why is not None}


def test_lists_become_ragged_batches_and_outputs_lists_in_the_same_order(
    tagger: onernn.Session,
) -> None:
    rows = rows_of(200, 40)
    table = pa.table({"id": range(200), "letters": rows})
    scored = Scorer(tagger, words=100)(table)
    assert scored.column_names[:2] == ["id", "letters"] and scored.num_columns == 5
    assert scored.select(["id", "letters"]) == table and reasons_of(scored) == {}
    for got, want in zip(scored.column(3).to_pylist(), alone(tagger, rows), strict=True):
        assert got == want[:, 0].tolist()
    for got, want in zip(scored.column(2).to_pylist(), alone(tagger, rows, 0), strict=True):
        np.testing.assert_allclose(np.reshape(got, (-1, 4)), want, rtol=1e-4, atol=1e-5)


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
    inputs = (Value("x", "float32", (3, None)),)
    graph = Graph("g", inputs, (Value("y"),), (Node("Relu", ("x",), ("y",)),), {})
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
    want = [each[:, 0].tolist() for each in alone(tagger, rows)]
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


def test_features_and_states_are_lists(data: Path) -> None:
    session = onernn.Session(data / "paddle" / "fc_gru_h0_rev0", threads=1)
    rng = np.random.default_rng(1)
    words = [rng.normal(size=(n, 24)).astype(np.float32) for n in (3, 0, 5, 3)]
    states = rng.normal(size=(4, 32)).astype(np.float32)
    rows: dict[str, list[Any]] = {"x": [x.tolist() for x in words], "h0": states.tolist()}
    output = Scorer(session)(pa.table(rows)).column(2)
    whole = session.run({"x": Ragged.from_list(words), "h0": states})
    (want,) = (each.to_list() for each in whole.values() if isinstance(each, Ragged))
    for got, each in zip(output.to_pylist(), want, strict=True):
        np.testing.assert_allclose(np.reshape(got, (-1, 32)), each, rtol=1e-4, atol=1e-6)
    rows["x"][1], rows["x"][2] = [[1.0] * 23], [[1.0] * 24, [2.0] * 23]
    rows["h0"][0], rows["h0"][3] = [1e300] * 32, [np.nan] * 32
    reasons = reasons_of(Scorer(session)(pa.table(rows)))
    assert list(reasons) == [0, 1, 2, 3] and "1e+300 is no float32" in reasons[0]
    assert "expected lists of 24 values, got 23" in reasons[1]
    assert "lists of 23 and 24 values" in reasons[2] and "NaN" in reasons[3]


def test_two_levels_of_lists_are_two_levels_of_lod(data: Path) -> None:
    session = onernn.Session(data / "paddle" / "two_levels", threads=1)
    rng = np.random.default_rng(2)
    texts = [[rng.normal(size=(n, 4)).astype(np.float32) for n in row] for row in ([2, 1], [3, 0])]
    one = rng.normal(size=(6, 1)).astype(np.float32)  # lends its offsets: one for each word of x
    rows = {
        "x": [[sentence.tolist() for sentence in text] for text in texts],
        "one": [one[:3, 0].tolist(), one[3:, 0].tolist()],
    }
    name = session.graph.outputs[1].name
    scored = Scorer(session, outputs={name: "y"})(pa.table(rows))
    lengths = np.array([len(sentence) for text in texts for sentence in text])
    x = Ragged.from_lengths(np.concatenate([s for text in texts for s in text]), lengths)
    given = {
        "x": Ragged(x.data, x.offsets, (np.array([0, 2, 4]),)),
        "one": Ragged(one, np.array([0, 3, 6])),
    }
    want = session.run(given)[name]
    assert isinstance(want, Ragged)
    got = scored.column("y").to_pylist()
    assert [[len(sentence) for sentence in text] for text in got] == [[2, 1], [3, 0]]
    flat = np.array([word for text in got for sentence in text for word in sentence])
    np.testing.assert_allclose(flat, want.data, rtol=1e-4, atol=1e-6)


def test_dense_sequences_of_one_length_share_a_batch_and_nothing_is_padded(data: Path) -> None:
    session = onernn.Session(data / "onnx" / "torch_tagger" / "model.onnx", threads=1)
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 5, n).tolist() for n in (4, 2, 4, 7, 2, 4)]
    scored = Scorer(session)(pa.table({"in0": rows}))
    assert reasons_of(scored) == {}
    tags, states = (value.name for value in session.graph.outputs)
    for at, row in enumerate(rows):
        want = session.run({"in0": np.array([row])})
        got = np.array(scored.column(tags)[at].as_py())
        np.testing.assert_allclose(got, np.asarray(want[tags])[0], rtol=1e-4, atol=1e-6)
        state = np.array(scored.column(states)[at].as_py())  # (layers, N, hidden): N is axis 1
        np.testing.assert_allclose(state, np.asarray(want[states])[:, 0], rtol=1e-4, atol=1e-6)


def test_rows_on_another_axis_are_refused_until_it_is_told(data: Path) -> None:
    model = data / "onnx" / "torch_gru_dynamic" / "model.onnx"  # (T=4, N, 6)
    session = onernn.Session(model, threads=1)
    name = session.graph.outputs[0].name
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5, 4, 6)).astype(np.float32)
    table = pa.table({"in0": x.tolist()})
    with pytest.raises(UnsupportedError, match="--batch-axis"):
        Scorer(session, outputs={name: "y"})(table)
    scored = Scorer(session, outputs={name: "y"}, batch_axis=1)(table)
    want = np.asarray(session.run({"in0": np.moveaxis(x, 0, 1)})[name])
    got = np.array(scored.column("y").to_pylist())
    np.testing.assert_allclose(got, np.moveaxis(want, 1, 0), rtol=1e-4, atol=1e-6)


def test_models_of_a_fixed_number_of_rows_get_as_many(data: Path) -> None:
    session = onernn.Session(data / "onnx" / "torch_packed_gru" / "model.onnx", threads=1)
    lengths = session.graph.inputs[1]
    assert lengths.shape == (2,)
    name = session.graph.outputs[0].name
    x = np.random.default_rng(5).normal(size=(3, 4, 6)).astype(np.float32)  # (N, T, 6)
    table = pa.table({"in0": x.tolist(), "in1": [4, 4, 4]})
    scorer = Scorer(session, outputs={name: "y"}, batch_axis=1)
    got = np.array(scorer(table).column("y").to_pylist())
    for at in range(3):
        given = {"in0": np.stack([x[at], x[at]], axis=1), "in1": np.array([4, 4])}
        want = np.asarray(session.run(given)[name])[:, 0]
        np.testing.assert_allclose(got[at], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"other": [[1]]}, "takes column 'letters'; the columns are"),
        ({"letters": [1, 2]}, "takes numbers in 1 levels of lists"),
        ({"letters": ["1 2"]}, "column 'letters' is string"),
        ({"letters": [["a"]]}, "column 'letters' is list"),
        ({"letters": [{"a": 1}]}, "column 'letters' is struct"),
        ({"letters": [[{"a": 1}]]}, "column 'letters' is list"),
    ],
)
def test_columns_that_no_row_can_have_are_refused(
    tagger: onernn.Session, table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        Scorer(tagger)(pa.table(table))


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


def test_unknown_names_and_taken_columns_are_refused(tagger: onernn.Session) -> None:
    tags = tagger.graph.outputs[1].name
    with pytest.raises(ShapeError, match="input 'words' is unknown; the model has letters"):
        Scorer(tagger, {"words": "text"})
    with pytest.raises(ShapeError, match="output 'tags' is unknown"):
        Scorer(tagger, outputs={"tags": "tags"})
    with pytest.raises(ShapeError, match="there is a column 'letters' already"):
        Scorer(tagger, outputs={tags: "letters"})(pa.table({"letters": [[1]]}))
    with pytest.raises(ShapeError, match="there is a column 'rejected' already"):
        Scorer(tagger)(Scorer(tagger, outputs={})(pa.table({"letters": [[1]]})))
    with pytest.raises(ShapeError, match="two of them would be column 'rejected'"):
        Scorer(tagger, outputs={tags: "rejected"})


@pytest.mark.parametrize("column", [pa.nulls(3), pa.array([None] * 3, pa.list_(pa.int64()))])
def test_a_batch_of_nothing_but_nulls_is_rejected_row_by_row(
    tagger: onernn.Session, column: pa.Array
) -> None:
    scored = Scorer(tagger)(pa.table({"letters": column}))
    assert scored.num_rows == 3 and scored.column(1).null_count == 3
    assert scored[REJECTED].to_pylist() == ["column 'letters': null"] * 3
