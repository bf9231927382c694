"""The manual and the front page: what they show comes out, and what they point to is there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest
from support import manual
from support.interpreters import run_python
from support.manual import REPO

PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "generated" not in page.parts]
RUN = [page for page in PAGES if any(
    block.key != "not run" and block.language in ("python", "console")
    for block in manual.blocks(page.read_text())
)]  # fmt: skip


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(REPO)))
def test_what_a_page_shows_is_what_comes_out(page: Path) -> None:
    for name in ("gcc", "g++"):
        used = re.search(rf"^\$ .*{re.escape(name)} .* -o ", page.read_text(), re.MULTILINE)
        if used and which(name) is None:
            pytest.skip(f"the page compiles a program, and there is no {name}")
    done = manual.started(page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]


DOCS = REPO / "docs"
GUIDES = [DOCS / "start.md", DOCS / "install.md"]
GUIDES += [page for name in ("tutorials", "moving") for page in sorted((DOCS / name).glob("*.md"))]


def test_guides_need_the_installed_package_and_the_samples_only() -> None:
    """Their blocks run in an empty folder, into which they copy the samples."""
    assert len(GUIDES) > 15
    for page in GUIDES:
        text = page.read_text()
        assert manual.folders_of(text) == [], page
        assert "samples/" not in text or "$ onernn samples samples\n" in text, page
    assert manual.folders_of("```console\n$ ls tests/data\n```\n") == ["tests"]


FRAMEWORKS = ("onnx", "paddle", "mxnet", "torch", "keras")
HEADINGS = ["Run a file", "Inside the live framework", "Check", "Convert and leave", "Limits"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_guides_by_framework_have_the_same_parts(name: str) -> None:
    text = (DOCS / "tutorials" / f"{name}.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS


def test_each_frameworks_page_of_operators_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` makes all reference pages from the code, in an environment of its own."""
    monkeypatch.syspath_prepend(REPO / "docs")
    from generated_pages import RULES, framework_page

    assert RULES
    for framework in RULES:
        rows = framework_page(framework).count("\n| ")
        assert rows > 50, framework


def test_every_block_is_run_somewhere_or_says_why_not() -> None:
    here = {"torch", "mxnet", "paddle", "keras", "ray", "pyspark", "apache_beam"}
    for page in PAGES:
        for block in manual.blocks(page.read_text()):
            assert block.language, f"{page}: a block without a language:\n{block.text}"
            assert block.key != "runs in" or block.value in here, (page, block)
            assert block.key != "not run" or len(block.value) > 20, (page, block)
            named = re.findall(r"tests/[\w/]+\.py", block.value)
            assert all((REPO / name).is_file() for name in named), (page, block)


def test_no_page_shows_what_the_cpu_decides() -> None:
    """It shows ``...`` there: which kernel runs a layer depends on instruction set and cores."""
    kernel = re.compile(r"kernels (?:avx|v2)|oneDNN (?:\d|for batches)|, (?:sse|avx)\w+")
    assert kernel.search("GRU left2right, f32, kernels v2; oneDNN for batches like 1 step")
    for page in PAGES:
        for block in manual.blocks(page.read_text()):
            assert not kernel.search(block.text), (page, block)


PAGE = """# A page
```python
print("one")
```

```text
{printed}
```

```console
$ {command}
{output}
```
"""
SOUND = {"printed": "one", "command": "echo two", "output": "two"}


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({}, ""),
        ({"printed": "two"}, "+one"),
        ({"output": "three"}, "+two"),
        ({"output": ""}, "+two"),
        ({"command": "false", "output": ""}, "exit 1"),
        ({"command": "onernn inspect nowhere.onnx", "output": ""}, "nowhere.onnx"),
        ({"command": "seq 9", "output": "1\n...\n9"}, ""),
        ({"command": "seq 9", "output": "1\n...\n8"}, "+9"),
        ({"command": "echo f32, kernels, cut", "output": "f32, ..., cut"}, ""),
        ({"command": "echo f32, kernels", "output": "u8, ..."}, "+f32"),
        ({"command": "seq 2", "output": "1..."}, "+2"),
        ({"command": "echo 0.31", "output": "0.32"}, "+0.31"),
        ({"command": "echo 3.1e-08", "output": "2.2e-07"}, ""),
        ({"command": "echo 3.1e-08", "output": "2.2e-03"}, "+3.1e-08"),
        ({"command": "echo 1.5 times", "output": "2.15 times"}, ""),
        ({"command": "echo 0.5 times", "output": "2.15 times"}, "+0.5 times"),
        ({"command": "echo 900 us, 3 MB", "output": "1.2 ms, 4 MB"}, ""),
        ({"command": "echo 900 us, 3 MB", "output": "1.2 ms, 40 MB"}, "+900 us"),
        ({"command": "echo a 3 ms b", "output": "a ... 3 ms b"}, "+a 3"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_another_output_would_be_seen(wrong: dict[str, str], told: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(**{**SOUND, **wrong}))
    done = manual.started(page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode == 0) == (not told), done.stdout
    assert told in done.stdout


def test_a_fence_that_nobody_runs_would_be_seen() -> None:
    for text in ("```python\nprint(1)\n", "  ```python\n  x\n  ```\n", "~~~\nx\n~~~\n"):
        with pytest.raises(ValueError, match="fences"):
            manual.blocks(text)


def test_links_of_the_front_page_lead_somewhere() -> None:
    text = (REPO / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)]+)\)|src=\"([^\"]+)\"", text)
    assert links
    for link in map("".join, links):
        path, _, anchor = link.partition("#")
        file = REPO / path
        assert file.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, (link, slugs)


def test_the_front_page_is_short_and_says_what_is_asked_of_it() -> None:
    text = (REPO / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for word in ("make demo", "make test", "pipeline.svg", "speed.svg", "Apache-2.0", "type this"):
        assert word in text, word


PICTURES = {
    "benchmarks/front_plot.py": "from benchmarks.front_plot import RESULT, drawn;"
    " told = {'speed': drawn(json.loads(RESULT.read_text()))}",
    "docs/architecture_picture.py": "from architecture_picture import draw, read_imports;"
    " told = {'architecture': draw(read_imports())}",
    "docs/fusion_picture.py": "from fusion_picture import drawn; told = {'fusion': drawn()}",
    "docs/layout_pictures.py": "from layout_pictures import PICTURES;"
    " told = {name: drawn() for name, drawn in PICTURES.items()}",
}
"""By the file that draws them, code that makes {name: SVG}."""


@pytest.mark.parametrize("file", PICTURES)
def test_pictures_are_drawn_from_what_is_there(file: str) -> None:
    """From measurements, models and layouts in the checkout, by the code that is said to do it."""
    code = (
        f"import json, sys; sys.path.insert(0, 'docs'); {PICTURES[file]}; print(json.dumps(told))"
    )
    told = json.loads(run_python("-c", code, cwd=REPO).stdout)
    assert told
    for name, drawn in told.items():
        assert drawn == (REPO / "docs" / "pictures" / f"{name}.svg").read_text(), name


def test_the_plot_shows_medians_of_the_fastest_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPO)
    from benchmarks.front_plot import PEERS, drawn, ratios

    def row(threads: int, **times: float) -> dict[str, object]:
        contenders = [{"name": k.replace("_", " "), "median": v} for k, v in times.items()]
        return {"dtype": "f32", "threads": threads, "contenders": contenders}

    rows = [
        row(1, onernn=2.0, torch_packed=6.0, torch_lod=5.0),
        row(1, onernn=1.0, torch_packed=4.0, mxnet=3.0),
        row(2, onernn=1.0, torch_packed=99.0),
    ]
    found = ratios({"rows": rows}, dtype="f32", threads=1)
    assert found == {"PyTorch": [2.5, 4.0], "MXNet": [3.0]}
    assert set(found) <= set(PEERS)
    head = {"cpu": "a CPU", "date": "2030-01-02T03:04:05"}
    text = drawn({"rows": rows, **head})
    assert "2030-01-02" in text and "a CPU" in text and ">3.2<" in text


def test_the_notebook_was_run_in_order_and_runs_again(tmp_path: Path) -> None:
    """Its texts are those of this code, apart from times."""
    book = json.loads((REPO / "docs" / "notebook.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    blocks = []
    for cell in cells:
        kinds = {each["output_type"] for each in cell["outputs"]}
        assert kinds <= {"stream", "execute_result"}, "an error, or a picture of another machine"
        blocks.append(f"```python\n{''.join(cell['source'])}\n```\n")
        said = [each["text"] for each in cell["outputs"] if each["output_type"] == "stream"]
        if said:
            blocks.append(f"```text\n{''.join(map(''.join, said))}```\n")
    page = tmp_path / "notebook.md"
    page.write_text("\n".join(blocks))
    done = manual.started(page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]
