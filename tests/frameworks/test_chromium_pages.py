"""Both pages by keyboard, on a phone, and in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import Browser
from support.planted import planted_pair

import onernn
from onernn.ir.graph import Graph, Node, Value
from onernn.verification.inspecting import inspect_model, write_graph_page
from onernn.verification.references import Against
from onernn.verification.report import write_report
from onernn.verification.verifying import verify

LIBRARY = """
const luminance = c => c.map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
const numbers = text => text.match(/[\\d.]+/g).map(Number);
const contrast = (a, b) => {
  const [low, high] = [a, b].map(c => luminance(c.slice(0, 3))).sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const paper = e => {  // the colour behind an element
  const box = e.closest("svg g") && e.getAttribute("text-anchor") === "middle"
    && e.parentElement.querySelector("rect");
  if (box) return numbers(getComputedStyle(box).fill);
  for (let at = e; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour[3] !== 0) return colour;
  }
  throw "no paper";
};
const shown = e => e.getClientRects().length > 0;
const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX)
  || ["auto", "scroll"].includes(getComputedStyle(e).overflowY);
const called = e => e.ariaLabel ?? e.querySelector(":scope > title")?.textContent.split("\\n")[0]
  ?? e.textContent.trim();
"""

CONTRASTS = """(() => {
  const told = {};
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !shown(e) || ["SCRIPT", "STYLE", "title"].includes(e.tagName)) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    const ink = numbers(svg ? style.fill : style.color);
    const pair = `${ink} on ${paper(e)}`;
    told[pair] ??= [contrast(ink, paper(e)), e.textContent.trim().slice(0, 40)];
  }
  return told;
})()"""

WIDTHS = """(() => ({
  page: [document.documentElement.scrollWidth, innerWidth],
  out: [...document.querySelectorAll("body *")].filter(e => {
    const r = e.getBoundingClientRect(), inside = e.parentElement.closest("svg");
    let holder = e.parentElement;
    while (holder && !scrolls(holder)) holder = holder.parentElement;
    return shown(e) && !inside && !holder && (r.left < -0.5 || r.right > innerWidth + 0.5);
  }).map(e => e.outerHTML.slice(0, 100)),
  mute: [...document.querySelectorAll("body *")].filter(e => shown(e) && scrolls(e)
    && (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight)
    && !(e.tabIndex === 0 && e.role === "region" && e.ariaLabel)
  ).map(e => e.outerHTML.slice(0, 100)),
}))()"""

FOCUS = """(() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const box = e.closest("svg g")?.querySelector("rect");
  const style = getComputedStyle(box || e);
  const ring = numbers(box ? style.stroke : style.outlineColor);
  const width = parseFloat(box ? style.strokeWidth : style.outlineWidth);
  const ground = paper(box ? box.ownerSVGElement : e.parentElement);
  return {name: called(e), ring: box || style.outlineStyle !== "none" ? width : 0,
    contrast: contrast(ring, ground), place: [...document.querySelectorAll("*")].indexOf(e)};
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    """A report that fails, one that passes, a model before and after fusion."""
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name}.html" for name in ("fail", "pass", "inspect")}
    sound, wrong = planted_pair("gates", 1)
    command = "onernn verify wrong.onnx --against sound.onnx"
    report = verify(wrong, against=Against(sound))
    write_report(report, files["fail"], command, f"onernn repair {'long' * 30}.onnx -o x.onnx")
    model = data / "paddle" / "bigru_concat"
    write_report(verify(onernn.load(model), model / "io.npz"), files["pass"], command)
    write_graph_page(inspect_model(onernn.load(model)), files["inspect"])
    return files


def opened(browser: Browser, page: Path, width: int, *, dark: bool = False) -> None:
    browser.open(page, width, dark=dark)
    browser.evaluate(LIBRARY)


def tabs(browser: Browser) -> list[dict[str, Any]]:
    """What has the focus after each press of Tab, until it leaves the page."""
    reached: list[dict[str, Any]] = []
    while len(reached) < 60:
        browser.press("Tab")
        focus = browser.evaluate(FOCUS)
        if focus is None or focus in reached:
            return reached
        reached.append(focus)
    raise AssertionError(reached)


ORDER = {
    "fail": [
        "Outputs",
        "Layer by layer",
        "The graph before fusion",
        "List of nodes before fusion",
        "The graph after fusion",
        "List of nodes after fusion",
    ],
    "inspect": [
        "Before fusion",
        "After fusion",
        "zoom in",
        "zoom out",
        "Fit",
        "name or operator",
        "Find",
        "x",
        "details of the chosen box",
    ],
}
"""The names of what Tab reaches, one after the other."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", ORDER)
def test_tab_reaches_all_controls_in_order_and_shows_where_it_is(
    page: str, dark: bool, browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages[page], 1440, dark=dark)
    reached = tabs(browser)
    assert [each["name"].partition(":")[0] for each in reached] == ORDER[page]
    assert [each["place"] for each in reached] == sorted(each["place"] for each in reached)
    for each in reached:
        assert each["ring"] >= 3 and each["contrast"] >= 3, each
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("page", ["fail", "pass", "inspect"])
def test_nothing_sticks_out_and_what_scrolls_can_be_scrolled_by_keys(
    page: str, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages[page], width)
    told = browser.evaluate(WIDTHS)
    assert told["page"] == [width, width]
    assert told["out"] == [] and told["mute"] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", ["fail", "pass", "inspect"])
def test_every_text_has_a_contrast_of_4_5(
    page: str, dark: bool, browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages[page], 1440, dark=dark)
    pairs = browser.evaluate(CONTRASTS)
    assert len(pairs) >= 4
    assert {pair: told for pair, told in pairs.items() if told[0] < 4.5} == {}
    ground = browser.evaluate("luminance(paper(document.body))")
    assert ground < 0.02 if dark else ground > 0.9


def test_these_checks_see_faults(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><body style='background:#fff'><p style='color:#999'>grey</p>"
        "<div style='width:2000px'>wide</div><button style='outline:none'>mute</button>"
        "<div style='overflow:auto;width:50px'><p style='width:90px'>scrolls</p></div>"
    )
    opened(browser, page, 390)
    told = browser.evaluate(WIDTHS)
    assert told["page"][0] > 390 and len(told["out"]) == 1 and len(told["mute"]) == 1
    assert min(ratio for ratio, _ in browser.evaluate(CONTRASTS).values()) < 4.5
    assert tabs(browser)[0]["ring"] < 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_failed_outputs_are_not_green(dark: bool, browser: Browser, pages: dict[str, Path]) -> None:
    code = """[...document.querySelectorAll(".bar i, .badge")].map(e =>
      [e.closest("h3, header, tr, div.places").textContent,
       numbers(getComputedStyle(e).backgroundColor), e.closest(".places") !== null])"""
    for page, verdict in (("fail", "FAIL"), ("pass", "pass")):
        opened(browser, pages[page], 1440, dark=dark)
        bars = 0
        for text, (red, green, *_), bar in browser.evaluate(code):
            if bar or verdict in text:
                assert (red > green) == (verdict == "FAIL"), text
            bars += bar
        assert bars > 3
        badges = browser.evaluate(
            "[...document.querySelectorAll('h3 .badge')].map(e => e.innerText)"
        )
        assert set(badges) == {verdict}


# --- a graph by keys

VIEW = """(() => {
  const svg = document.querySelector(".pane:not([hidden]) svg");
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("g rect")].map(e => e.getBoundingClientRect());
  const inside = b => b.left >= frame.left && b.right <= frame.right
    && b.top >= frame.top && b.bottom <= frame.bottom;
  const outside = b => b.top >= frame.bottom || b.bottom <= frame.top;
  return {wide: svg.viewBox.baseVal.width, left: svg.viewBox.baseVal.x,
    boxes: boxes.length, whole: boxes.filter(inside).length,
    cut: boxes.filter(b => !inside(b) && !outside(b)).length,
    more: !document.getElementById("more").hidden,
    details: document.getElementById("details").textContent.split("\\n")[0],
    focus: document.activeElement.id || called(document.activeElement),
    visible: document.activeElement.closest("g")
      && inside(document.activeElement.closest("g").querySelector("rect").getBoundingClientRect())};
})()"""


def test_a_graph_is_read_zoomed_moved_and_searched_by_keys(
    browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages["inspect"], 1280)

    def view(*keys: str, shift: bool = False) -> dict[str, Any]:
        for key in keys:
            browser.press(key, shift=shift)
        told: dict[str, Any] = browser.evaluate(VIEW)
        return told

    start = view()
    first = view(*["Tab"] * 8)
    assert first["focus"] == first["details"] and first["focus"].startswith("x:")
    second = view("ArrowDown")
    assert second["details"].startswith("Rnn makes") and second["visible"]
    assert view("End")["details"] != second["details"]
    assert view("Home")["details"] == first["details"]
    nearer = view("+", "+")
    assert nearer["wide"] < start["wide"] and nearer["visible"]
    assert view("-")["wide"] > nearer["wide"]
    assert view("ArrowRight", shift=True)["left"] > view("ArrowLeft", shift=True)["left"]
    assert view("0")["whole"] == start["boxes"]
    assert view("/")["focus"] == "find"
    found = view(*"rnn", "Enter")
    assert found["details"].startswith("Rnn makes") and found["focus"] == "find"
    back = view("Escape")
    assert back["focus"] == found["details"] and back["visible"]
    assert browser.complaints == []


@pytest.mark.parametrize("rows", [3, 9, 12, 40])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_box_is_cut_on_opening_and_fit_shows_all(
    rows: int, width: int, browser: Browser, tmp_path: Path
) -> None:
    nodes = tuple(Node("Tanh", (f"v{k}",), (f"v{k + 1}",)) for k in range(rows))
    graph = Graph("m", (Value("v0", "float32", (2,)),), (Value(f"v{rows}"),), nodes, {})
    write_graph_page(inspect_model(graph), tmp_path / "page.html")
    opened(browser, tmp_path / "page.html", width)
    view = browser.evaluate(VIEW)
    assert view["cut"] == 0 and view["more"] == (view["whole"] < view["boxes"])
    assert view["whole"] == view["boxes"] or rows > 9
    browser.evaluate("document.getElementById('fit').click()")
    view = browser.evaluate(VIEW)
    assert view["whole"] == view["boxes"] == rows + 2 and not view["more"]


def test_pictures_of_a_report_are_whole(browser: Browser, tmp_path: Path) -> None:
    """Also the last box of a graph of many rows, on a phone."""
    nodes = tuple(Node("Tanh", (f"v{k}",), (f"v{k + 1}",)) for k in range(30))
    graph = Graph("m", (Value("v0", "float32", (2,)),), (Value("v30"),), nodes, {})
    recording = {"in__v0": np.ones(2, np.float32), "out__v30": np.zeros(2, np.float32)}
    write_report(verify(graph, recording), tmp_path / "page.html")
    for width in (390, 1440):
        opened(browser, tmp_path / "page.html", width)
        hidden = browser.evaluate("""[...document.querySelectorAll(".picture")].filter(
          e => e.scrollHeight > e.clientHeight || e.scrollWidth > e.clientWidth).length""")
        assert hidden == 0
