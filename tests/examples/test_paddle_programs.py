"""Programs for Paddle, as PyPI has them, tag as Paddle 2.6.2 did (recorded there)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.interpreters import run_python

LAC = """
import json, sys
from LAC import LAC
texts = json.loads(sys.argv[1])
found = {}
for mode in ("lac", "seg", "rank"):
    lac = LAC(mode=mode)
    found[mode] = [lac.run(text) for text in texts]
    assert lac.run(list(texts)) == found[mode]
    assert len(lac.run([texts[0], "", texts[1]])) == 3 and lac.run("") is not None
lac = LAC()
lac.add_word(texts[0][:4] + "/CUSTOM")
words, tags = lac.run(texts[0])
assert (words[0], tags[0]) == (texts[0][:4], "CUSTOM")
print(json.dumps(found, default=int))
"""

JIEBA = """
import json, sys
import tagger
from onernn import Ragged
found = []
for text in json.loads(sys.argv[1]):
    ids = tagger.np.array(tagger.DATASET.get_vars(text))
    tags = tagger.SESSION.run({"words": Ragged.from_lengths(ids, [len(ids)])})["tags"]
    found.append(tags.data.ravel().tolist())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def recorded(data: Path) -> dict[str, Any]:
    found = json.loads((data / "real_models" / "paddle_programs.json").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def printed(folder: Path, *command: str) -> Any:
    return json.loads(run_python(*command, cwd=folder).stdout.splitlines()[-1])


@pytest.mark.skipif(find_spec("LAC") is None, reason="LAC is not installed; see examples/lac")
def test_lac_from_pypi_tags_as_in_paddle(recorded: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tags.py").write_text(LAC)
    texts = json.dumps(recorded["texts"])
    found = printed(tmp_path, "-m", "onernn.paddle", "tags.py", texts)
    assert found == {mode: recorded[mode] for mode in ("lac", "seg", "rank")}


@pytest.mark.skipif(find_spec("jieba") is None, reason="jieba is not installed; see examples/jieba")
def test_jiebas_paddle_mode_tags_as_in_paddle(recorded: dict[str, Any], repo: Path) -> None:
    texts = json.dumps(recorded["texts"])
    assert printed(repo / "examples" / "jieba", "-c", JIEBA, texts) == recorded["jieba"]
