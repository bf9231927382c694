"""The page of ``inspect --html`` in a real browser: it zooms, tells, finds, and runs no name."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onernn
from onernn.ir.graph import Graph, NativeOp, Node, Value
from onernn.verification.inspecting import inspect_model, render_graph_page

# What a person does, one after the other; what the page looks like after each step.
USE = """
const state = () => {
  const pane = document.querySelector(".pane:not([hidden])"), svg = pane.querySelector("svg");
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("g rect")].map(e => e.getBoundingClientRect());
  return {pane: pane.id, wide: svg.viewBox.baseVal.width, boxes: boxes.length,
    seen: boxes.filter(b => b.width > 3 && b.right > frame.left && b.left < frame.right
      && b.bottom > frame.top && b.top < frame.bottom).length,
    said: document.getElementById("details").textContent,
    width: document.documentElement.clientWidth, needed: document.documentElement.scrollWidth,
    attacked: !!window.attacked};
};
const told = {start: state()};
document.getElementById("nearer").click(); told.nearer = state();
document.getElementById("fit").click(); told.fit = state();
const svg = document.querySelector("#after svg"), frame = svg.getBoundingClientRect();
const corner = {clientX: frame.x + 50, clientY: frame.y + 50};
svg.dispatchEvent(new WheelEvent("wheel", {deltaY: 100, ...corner}));
told.wheel = state();
document.getElementById("to-before").click(); told.before = state();
const rnn = [...document.querySelectorAll("#before g")].find(e => e.textContent.includes("Rnn"));
(rnn || document.querySelector("#before g")).dispatchEvent(new MouseEvent("click"));
told.clicked = state();
document.getElementById("find").value = "WANTED";
document.getElementById("search").requestSubmit(); told.found = state();
console.info("TOLD " + JSON.stringify(told));
"""
MESSAGE = re.compile(r':([A-Z]+):[^\]]*CONSOLE[^\]]*\] "(.*)", source: ', re.DOTALL)


def used(page: str, wanted: str, width: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What a page became under `USE`, and what else its console said."""
    use = USE.replace('"WANTED"', json.dumps(wanted).replace("<", "\\u003c"))
    digest = base64.b64encode(hashlib.sha256(use.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    (folder / "page.html").write_text(f"{page}<script>{use}</script>")
    frame = f'<body style="margin:0"><iframe src="page.html" style="border:0;width:{width}px'
    (folder / "frame.html").write_text(f'<!doctype html>{frame};height:2000px"></iframe>')
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command += ["--window-size=1300,2000", (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    told, complaints = {}, []
    for line in done.stderr.splitlines():
        if "CONSOLE" in line:
            found = MESSAGE.search(line)
            text = found[2] if found else line
            if text.startswith("TOLD "):
                told = json.loads(text.removeprefix("TOLD "))
            else:
                complaints.append(text)
    return told, complaints


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_used_as_a_person_does(width: int, data: Path, tmp_path: Path) -> None:
    found = inspect_model(onernn.load(data / "paddle" / "bigru_concat"))
    told, complaints = used(render_graph_page(found), "multi_gru", width, tmp_path)
    assert complaints == []
    start = told["start"]
    assert start["pane"] == "after" and start["seen"] == start["boxes"] == 4
    assert start["width"] == start["needed"] == width, "nothing sticks out"
    assert told["nearer"]["wide"] < start["wide"] == told["fit"]["wide"] < told["wheel"]["wide"]
    assert told["before"]["pane"] == "before"
    assert told["before"]["boxes"] == len(found.model.nodes) + 2
    assert "Rnn makes" in told["clicked"]["said"] and "float32 (W, 32)" in told["clicked"]["said"]
    assert told["found"]["said"] == "nothing found"


def test_search_goes_to_a_box_of_a_large_graph(tmp_path: Path) -> None:
    nodes = tuple(Node("Tanh", (f"v{k}",), (f"v{k + 1}",)) for k in range(300))
    graph = Graph("long", (Value("v0", "float32", (2,)),), (Value("v300"),), nodes, {})
    told, complaints = used(render_graph_page(inspect_model(graph)), "makes v299", 800, tmp_path)
    assert complaints == [] and 0 < told["start"]["seen"] < told["start"]["boxes"]
    assert told["found"]["said"].startswith("Tanh makes v299") and told["found"]["seen"] > 0


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    attack = "window.attacked=1;window.parent.attacked=1"
    names = (
        f"</script><script>{attack}</script>",
        f"</title></svg><img src=x onerror={attack}>",
        f'"><svg onload={attack}>',
    )
    nodes = tuple(
        Node("Unsupported", (name,), (f"{name}y",), {"reason": name}, (NativeOp(0, name),))
        for name in names
    )
    outputs = tuple(Value(f"{name}y") for name in names)
    graph = Graph(names[0], tuple(map(Value, names)), outputs, nodes, {}, notes=names)
    page = render_graph_page(inspect_model(graph))
    told, complaints = used(page, names[1], 800, tmp_path)
    assert complaints == [] and not any(each["attacked"] for each in told.values())
    assert names[1] in told["found"]["said"], "shown as it is written"


def test_the_policy_stops_a_script_even_where_escaping_would_fail(tmp_path: Path) -> None:
    """The check above can fail: the same script put in as markup is seen by the browser."""
    graph = Graph("m", (Value("x"),), (Value("x"),), (), {"c": np.zeros(1)})
    page = render_graph_page(inspect_model(graph))
    broken = page.replace("<h1>", "<script>window.attacked = 1</script><h1>")
    told, complaints = used(broken, "x", 800, tmp_path)
    assert not told["start"]["attacked"]
    assert any("Content Security Policy" in each for each in complaints)
