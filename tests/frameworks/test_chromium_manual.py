"""The manual in a real browser: pages open without complaints, search finds, a phone will do."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

# Opens each page in a frame of a phone's width, one after the other, and tells what it sees.
DRIVER = """<!doctype html><iframe id="f" style="border:0;width:400px;height:800px"></iframe>
<script>
const frame = document.getElementById("f"), wait = ms => new Promise(go => setTimeout(go, ms));
const open = page => new Promise(go => { frame.onload = go; frame.src = page; });
const size = e => parseFloat(frame.contentWindow.getComputedStyle(e).fontSize);
(async () => {
  const told = {pages: {}, found: {}};
  for (const page of PAGES) {
    await open("/" + page);
    const d = frame.contentDocument, root = d.documentElement;
    for (const e of d.images)
      if (!e.complete) await new Promise(go => { e.onload = e.onerror = go; });
    told.pages[page] = {
      title: d.title, width: root.clientWidth, needed: root.scrollWidth,
      small: [...d.querySelectorAll("article p, article td, article li, article h1, article h2")]
        .filter(e => e.textContent.trim() && size(e) < 12).length,
      broken: [...d.images].filter(e => !e.naturalWidth).map(e => e.src),
      links: [...d.querySelectorAll("a[href]")].map(e => e.href),
      from: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
      ids: [...d.querySelectorAll("[id]")].map(e => e.id),
      unreachable: [...d.querySelectorAll("article *")].filter(
        e => e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0
          && ["auto", "scroll"].includes(frame.contentWindow.getComputedStyle(e).overflowX)
      ).map(e => e.className),
    };
  }
  for (const query of QUERIES) {
    await open("/search.html?q=" + encodeURIComponent(query));
    const listed = () => [...frame.contentDocument.querySelectorAll("ul.search li > a")];
    let before = -1;
    for (let turn = 0; turn < 200 && (!listed().length || listed().length !== before); turn++) {
      before = listed().length;
      await wait(300);
    }
    told.found[query] = listed().map(e => new URL(e.href).pathname.slice(1));
  }
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();</script>"""

TASKS = {
    "speed up ONNX": "tutorials/onnx.html",
    "LAC": "generated/examples/lac.html",
    "wrong gate": "howto/wrong.html",
    "Keras weights PyTorch": "tutorials/keras.html",
    "IPEX": "moving/ipex.html",
    "frame by frame C++": "tutorials/cpp.html",
    "MXNet language model": "tutorials/mxnet.html",
    "ONNX Runtime faster": "howto/slower.html",
    "make a recording": "howto/recordings.html",
    "cluster": "tutorials/corpora.html",
    "int8": "howto/precision.html",
    "install wheel": "install.html",
    "origin_mode": "explanations/gates.html",
    "license": "project.html",
    "environment variable": "reference/environment.html",
    "exit code": "reference/exit_codes.html",
    "supported versions": "reference/versions.html",
    "offsets must start at 0": "troubleshooting.html",
    "this operator is not known": "troubleshooting.html",
    "expected onernn.Ragged": "troubleshooting.html",
    "libdnnl not found": "troubleshooting.html",
    "docker container": "troubleshooting.html",
    "how many threads": "howto/threads.html",
}
"""What strangers look for, and the page that tells it."""

CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
CONSOLE = re.compile(r"CONSOLE[^\]]*\] (.*)")


class Visit:
    """What a browser says of a site, by the pages' names; and its console's lines."""

    def __init__(self, site: Path, pages: list[str], queries: list[str], folder: Path) -> None:
        self.told: dict[str, Any] = {}
        done = threading.Event()
        driver = DRIVER.replace("PAGES", json.dumps(pages)).replace("QUERIES", json.dumps(queries))

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                if handler.path not in ("/driver", "/favicon.ico"):
                    return super().do_GET()
                handler.send_response(200)
                handler.send_header("Content-Type", "text/html; charset=utf-8")
                handler.end_headers()
                handler.wfile.write(driver.encode() if handler.path == "/driver" else b"")

            def do_POST(handler) -> None:  # noqa: N805
                self.told = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                handler.send_response(204)
                handler.end_headers()
                done.set()

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
        self.home = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = folder / "said"
        command = [*CHROMIUM, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0"]
        with said.open("wb") as stream:
            browser = subprocess.Popen(
                [*command, f"{self.home}driver"], stdout=stream, stderr=stream
            )
            try:
                assert done.wait(600), said.read_text(errors="replace")[-3000:]
            finally:
                browser.terminate()
                browser.wait(60)
                server.shutdown()
        self.complaints = CONSOLE.findall(said.read_text(errors="replace"))


@pytest.fixture(scope="module")
def site(repo: Path) -> Path:
    found = repo / "out" / "docs"
    assert (found / "index.html").is_file(), "no manual there; run: make docs"
    return found


@pytest.fixture(scope="module")
def pages(site: Path) -> list[str]:
    return sorted(str(file.relative_to(site)) for file in site.rglob("*.html"))


@pytest.fixture(scope="module")
def visit(site: Path, pages: list[str], tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return Visit(site, pages, [*TASKS, "xyzzy"], tmp_path_factory.mktemp("visit"))


def each(visit: Visit) -> Iterator[tuple[str, dict[str, Any]]]:
    assert visit.told["pages"]
    yield from visit.told["pages"].items()


def test_every_page_opens_and_none_complains(visit: Visit, pages: list[str]) -> None:
    assert visit.complaints == []
    assert list(visit.told["pages"]) == pages and len(pages) > 60
    for page, seen in each(visit):
        assert seen["title"], page
        assert seen["broken"] == [], page


def test_nothing_comes_from_elsewhere(visit: Visit) -> None:
    for page, seen in each(visit):
        assert [name for name in seen["from"] if not name.startswith(visit.home)] == [], page


def test_links_lead_to_a_page_and_a_place_in_it(visit: Visit, site: Path) -> None:
    ids = {page: set(seen["ids"]) for page, seen in each(visit)}
    for page, seen in each(visit):
        for link in seen["links"]:
            if not link.startswith(visit.home):
                assert link.startswith(("https://", "http://", "mailto:")), (page, link)
                continue
            path, _, anchor = unquote(link.removeprefix(visit.home)).partition("#")
            path = path or "index.html"
            assert (site / path.partition("?")[0]).is_file(), (page, link)
            assert not anchor or path not in ids or anchor in ids[path], (page, link)


def test_a_phone_shows_pages_whole_and_in_letters_that_can_be_read(visit: Visit) -> None:
    for page, seen in each(visit):
        assert seen["needed"] <= seen["width"] <= 400, (page, seen["needed"])
        assert seen["small"] == 0, page


def test_boxes_that_scroll_sideways_can_be_reached_by_keyboard(visit: Visit) -> None:
    for page, seen in each(visit):
        assert seen["unreachable"] == [], page


def test_design_notes_are_not_in_the_manual(pages: list[str]) -> None:
    assert not [page for page in pages if "design" in page]


def test_strangers_find_their_page_by_searching(visit: Visit) -> None:
    for query, page in TASKS.items():
        assert page in visit.told["found"][query][:4], (query, visit.told["found"][query][:12])
    assert visit.told["found"]["xyzzy"] == []


def test_search_works_without_any_server(site: Path, tmp_path: Path) -> None:
    command = [
        *CHROMIUM,
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    page = f"{(site / 'search.html').as_uri()}?q=recording"
    done = subprocess.run([*command, page], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and CONSOLE.findall(done.stderr) == [], done.stderr[-2000:]
    assert "howto/recordings.html" in done.stdout.split("search-results")[1]


def test_the_check_sees_faults(tmp_path: Path) -> None:
    broken = "<!doctype html><title>x</title><h1>x</h1><article><p style='font-size:9px'>x</p>"
    broken += "<img src='nothing.png'><a href='gone.html'>x</a><div style='width:900px'>x</div>"
    broken += "<pre class='wide' style='overflow-x:auto'>" + "x" * 900 + "</pre>"
    (tmp_path / "broken.html").write_text(broken + "</article><script>nowhere()</script>")
    (tmp_path / "search.html").write_text("<!doctype html><ul class=search></ul>")
    seen = Visit(tmp_path, ["broken.html"], [], tmp_path)
    assert any("nowhere is not defined" in line for line in seen.complaints)
    page = seen.told["pages"]["broken.html"]
    assert page["needed"] > 400 and page["small"] == 1
    assert len(page["broken"]) == 1 and page["links"] == [f"{seen.home}gone.html"]
    assert page["unreachable"] == ["wide"]
