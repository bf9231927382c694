"""Corpora and results in object stores; URIs with secrets; folders of table formats."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from support.interpreters import run_python
from support.scoring import INPUTS, MODEL, corpus, files

from onernn.ir.errors import OnernnError, UnsupportedError
from onernn.scoring import score
from onernn.scoring.corpus import Corpus
from onernn.scoring.systems import hiding_secrets, open_system, shown

GIVEN: dict[str, Any] = {"inputs": INPUTS, "window": 8, "workers": 2}
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.parquet"
    pq.write_table(corpus(30, longest=8), file)
    return file


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="file or folder; check the path.*nothing.parquet"):
        score(MODEL, tmp_path / "nothing.parquet", tmp_path / "out", **GIVEN)


@pytest.mark.parametrize(
    "uri, safe",
    [
        ("/a/b@c:d?e=f", "/a/b@c:d?e=f"),
        (f"s3://AKIAX:{SECRET}@b/x?region=eu", "s3://***@b/x?region=eu"),
        ("s3://bucket/a@b/x", "s3://bucket/a@b/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("abfs://box@account.dfs/x?sig=abc%3D&sv=1", "abfs://box@account.dfs/x?sig=***&sv=***"),
        ("https://h/x.parquet?X-Amz-Signature=0a1b", "https://h/x.parquet?X-Amz-Signature=***"),
    ],
)
def test_uris_are_shown_without_secrets(uri: str, safe: str) -> None:
    assert shown(uri) == safe


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://AKIAX:{SECRET} @bucket/x",
        f"s3://AKIAX:{SECRET}@bucket/x?unknown_option={SECRET}",
        f"nowhere://user:{SECRET}@host/x",
        f"file:///proc/nothing?token={SECRET}",
    ],
)
def test_no_error_shows_a_secret_of_its_uri(source: Path, tmp_path: Path, uri: str) -> None:
    for words in ([uri, tmp_path / "out"], [source, uri], [source, tmp_path / "o", uri]):
        names = dict(zip(("corpus", "output", "rejected"), map(str, words), strict=False))
        with pytest.raises((OnernnError, OSError)) as info:
            score(MODEL, **names, **GIVEN)
        text = "".join(traceback.format_exception(info.value)) + repr(vars(info.value))
        assert SECRET not in text and "AKIAX" not in text
    done = run_python("-m", "onernn.cli", "score", MODEL, uri, tmp_path / "out", status=2)
    assert SECRET not in done.stdout + done.stderr


def test_causes_and_escaped_secrets_are_hidden() -> None:
    with (
        pytest.raises(OSError) as info,
        hiding_secrets("s3://me:pass%2Fword@b/x"),
    ):
        try:
            raise ValueError("got pass/word", ("pass%2Fword",))
        except ValueError as error:
            raise OSError(5, "s3://me:pass%2Fword@b/x failed", "pass/word") from error
    assert "word" not in f"{info.value!r} {info.value} {info.value.__cause__!r}"
    assert info.value.errno == 5 and "s3://***@b/x failed" in str(info.value)


@pytest.mark.parametrize(
    "marker, format",
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        ("metadata/v1.metadata.json", "Iceberg"),
        ("below/table/_delta_log/0.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
    ],
)
def test_folders_of_table_formats_are_refused_with_a_remedy(
    tmp_path: Path, marker: str, format: str
) -> None:
    (tmp_path / marker).parent.mkdir(parents=True)
    (tmp_path / marker).touch()
    pq.write_table(corpus(30), tmp_path / "part-0.parquet")
    with pytest.raises(UnsupportedError, match=f"{format} table.*Parquet"):
        Corpus(str(tmp_path), ["text"])


def test_a_folder_named_metadata_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    pq.write_table(corpus(30), tmp_path / "metadata" / "x.parquet")
    assert Corpus(str(tmp_path), ["text"]).rows == 30


def test_a_store_of_fsspec_gets_the_bytes_of_a_folder_and_is_continued(
    source: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec")
    store = f"memory://{uuid4().hex}"
    system, path = open_system(store)
    with system.open_output_stream(f"{path}/in/corpus.parquet") as stream:
        stream.write(source.read_bytes())
    score(MODEL, source, tmp_path / "out", rejected=tmp_path / "bad", **GIVEN)
    for before in (0, 4, 3):
        if before == 3:
            with system.open_output_stream(f"{path}/out/part-000001.parquet") as stream:
                stream.write(b"PAR1")
        where = f"{store}/in", f"{store}/out"
        summary = score(MODEL, *where, rejected=f"{store}/bad", **GIVEN)
        assert (summary.windows, summary.windows_before) == (4, before)
        assert len(summary.repaired) == (before == 3)
    for folder in ("out", "bad"):
        for name, content in files(tmp_path / folder).items():
            with system.open_input_file(f"{path}/{folder}/{name}") as stream:
                got = stream.read()
            if name != "_scoring.json":  # has the time of the corpus
                assert folder != "out" or rows_of(got) == rows_of(content)
    with system.open_output_stream(f"{path}/out/mine") as stream:
        stream.write(b"")
    with pytest.raises(UnsupportedError, match="'mine'"):
        score(MODEL, *where, **GIVEN)


def rows_of(content: bytes) -> Any:
    import pyarrow as pa

    return pq.read_table(pa.BufferReader(content)).replace_schema_metadata()


@pytest.fixture
def server(source: Path) -> Iterator[str]:
    """Serves the folder of the corpus."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = partial(Quiet, directory=str(source.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_is_read_from_a_server_and_its_token_is_written_nowhere(
    source: Path, server: str, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http by aiohttp")
    if kind == "jsonl":
        rows = pq.read_table(source).to_pylist()
        source.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)))
    score(MODEL, f"{server}/corpus.{kind}?token={SECRET}", tmp_path / "out", **GIVEN)
    score(MODEL, source.with_suffix(f".{kind}"), tmp_path / "local", **GIVEN)
    assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "local"))
    assert not any(SECRET.encode() in content for content in files(tmp_path / "out").values())
    with pytest.raises((OnernnError, OSError)) as info:
        score(MODEL, f"{server}/absent?token={SECRET}", tmp_path / "new", **GIVEN)
    assert SECRET not in str(info.value)
