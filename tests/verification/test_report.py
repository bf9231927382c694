"""The report is one file that needs nothing else, and says what a reader wants to know first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import planted
from support.command_line import failed
from support.command_line import onernn as command_line
from support.html_pages import Page
from support.planted import planted_pair

import onernn
from onernn.ir.graph import Graph, Node, Value
from onernn.verification.inspecting import (
    COLOURS,
    DARK,
    colour_fused_values,
    number,
    picture,
)
from onernn.verification.references import Against
from onernn.verification.report import render, write_report
from onernn.verification.verifying import Report, verify


@pytest.fixture(scope="module")
def failing() -> Report:
    sound, wrong = planted_pair("gates", 1)
    return verify(wrong, against=Against(sound))


REPAIR = "onernn repair wrong.onnx --against sound.onnx -o 'a b.onnx'"


@pytest.fixture(scope="module")
def page(failing: Report) -> str:
    return render(failing, "onernn verify wrong.onnx --against sound.onnx", REPAIR)


def test_the_verdict_and_the_cause_come_first(page: str, failing: Report) -> None:
    words = Page(page).words
    places = [
        words.index(part)
        for part in (
            "FAIL The output differs from the reference.",
            failing.cause.text,
            "Repair it. This command writes the model without this fault",
            REPAIR,
            "In the converter. " + failing.cause.advice,
            "onernn verify wrong.onnx --against sound.onnx",
            "Outputs",
            "Layer by layer",
            "Where the differences lie",
            "The graph before and after fusion",
            "Kernels",
            "Versions",
        )
    ]
    assert places == sorted(places)


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    found = Page(page)
    assert all(address.startswith(("data:", "#")) for address in found.addresses), found.addresses
    assert not {"script", "link", "iframe", "object"} & (set(found.tags) - {"link"})
    assert not re.search(r"url\(\s*['\"]?(?!#)", page) and "@import" not in page


def test_errors_have_a_row_for_each_place(page: str, failing: Report) -> None:
    assert len(re.findall(r"<svg.*?</svg>", page, re.S)) == 2  # the graphs
    (profile,) = failing.profiles
    kinds = (profile.steps, profile.lengths, profile.ends)
    assert page.count('<div class="bar fail">') == sum(map(len, kinds)) > 3
    worst = max(profile.steps, key=lambda row: row[1])
    bar = r'<td aria-hidden="true"><div class="bar fail"><i style="width:100.0%"></i></div></td>'
    assert re.search(f"<td>{worst[0]}</td>{bar}<td>{number(worst[1])}</td>", page)
    assert '<div class="bar pass">' not in page
    heading = f'<h3><span class="badge fail">FAIL</span>\n  <code>{profile.name}</code>'
    assert heading in page, "a word, not only a colour"


def test_what_scrolls_can_be_reached_by_keys_and_has_a_name(page: str) -> None:
    scrolling = re.findall(r'<div class="(?:scroll|long)[^>]*>', page)
    assert len(scrolling) >= 4
    for tag in scrolling:
        assert 'tabindex="0"' in tag and 'role="region"' in tag and 'aria-label="' in tag, tag


def test_without_a_command_that_repairs_the_page_says_what_to_change(failing: Report) -> None:
    words = Page(render(failing)).words
    assert f"What to change. {failing.cause.advice}" in words and "Repair it" not in words


def test_a_report_without_a_cause_says_where_to_look() -> None:
    sound, wrong = planted_pair("dense_scaled")
    found = replace(verify(wrong, against=Against(sound)), causes=())
    words = Page(render(found)).words
    assert "None of the known faults explains" in words
    assert f"Look at {found.first} : it is the first node that differs." in words


def test_a_passing_report_says_so_and_names_no_cause(tmp_path: Path, data: Path) -> None:
    folder = data / "paddle" / "bigru_concat"
    write_report(verify(onernn.load(folder), folder / "io.npz"), tmp_path / "r.html")
    words = Page((tmp_path / "r.html").read_text()).words
    assert words.split("Outputs")[0].count("PASS") == 1 and "What to change" not in words
    assert "fc_gru_fuse_pass in Paddle" in words and "oneDNN" in words


def test_fused_nodes_bear_the_colour_of_what_they_became(data: Path) -> None:
    from onernn.fuse_passes import fuse

    before = onernn.load(data / "paddle" / "bigru_concat")
    after = fuse(before).model
    old, new = colour_fused_values(before, after)
    assert list(new.values()) == [COLOURS[0]]
    ops = {node.op for node in before.nodes if node.outputs[0] in old}
    assert {"MatMul", "Add", "GateLayout", "Rnn"} <= ops
    drawn = picture(before, "before", fused=old)
    assert drawn.count(f'fill="{COLOURS[0]}"') == len(old)
    assert drawn.count("<rect") == len(before.nodes) + 2


def test_the_first_node_that_differs_has_a_red_border_and_a_word(page: str) -> None:
    drawn = re.findall(r"<svg.*?</svg>", page, re.S)
    assert sum(each.count('stroke="#b91c1c"') for each in drawn) >= 1
    for each in drawn:
        assert each.count('stroke="#b91c1c"') == each.count(">first that differs</text>")


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


INKS = {"text": ("paper", "soft", "fail-soft"), "dim": ("paper", "soft", "fail-soft")}
INKS |= {"on-verdict": ("pass", "fail"), "on-accent": ("accent",)}


def test_both_schemes_have_a_contrast_of_4_5(page: str) -> None:
    """By the formula of WCAG 2; the colours are those of the page's style sheet."""
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", text))
        for text in page.partition("</style>")[0].split("@media (prefers-color-scheme: dark)")
    )
    assert {"text", "paper", "fail-bar"} <= dark.keys() <= light.keys()
    for colours in (light, light | dark):
        for ink, papers in INKS.items():
            for paper in papers:
                assert _contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
        for line in ("control", "focus", "pass-bar", "fail-bar", "mark"):
            assert _contrast(colours[line], colours["paper"]) >= 3, line
    for texts, papers in (("#0f172a", COLOURS), ("#475569", (*COLOURS, "#ffffff"))):
        for paper in papers:
            assert _contrast(texts, paper) >= 4.5 <= _contrast(DARK[texts], DARK[paper])
    for colour in set(re.findall(r'(?:fill|stroke)="(#[^"]*)"', page)):
        assert f'[fill="{colour}"] {{ fill: {DARK[colour]}; }}' in page


def test_long_graphs_are_cut_around_their_first_recurrent_node() -> None:
    nodes = tuple(Node("Tanh", (f"v{k}",), (f"v{k + 1}",)) for k in range(2000))
    graph = Graph("long", (Value("v0"),), (Value("v2000"),), nodes, {})
    assert 100 < picture(graph, "long", fused={}).count("<rect") < 200


def test_long_names_are_cut_in_the_middle_and_short_ones_are_not() -> None:
    name, short = "a" * 20 + "b" * 20, "c" * 24
    graph = Graph("m", (Value(name), Value(short)), (), (Node("Add", (name, short), ("y",)),), {})
    svg = picture(graph, "m", fused={})
    assert f">{'a' * 11}…{'b' * 12}</text>" in svg and f">{short}</text>" in svg
    (height,) = re.findall(r' height="(\d+)">\n', svg)
    tops = [float(y) for y in re.findall(r'<rect x="[^"]*" y="([\d.]+)"', svg)]
    assert min(tops) == 30 and max(tops) + 50 + 30 == int(height)  # a box, and room above and below


def test_the_command_writes_a_report_that_repeats_the_command(tmp_path: Path) -> None:
    sound, wrong = planted.write_swapped(tmp_path)
    out = tmp_path / "a b.html"
    command = ["verify", wrong, "--against", sound, "--report"]
    done = command_line(*command, out)
    assert done.returncode == 1, done.stderr
    words = Page(out.read_text()).words
    assert f"onernn verify {wrong} --against {sound} --report '{out}'" in words
    missing = f"the folder {tmp_path / 'no'} does not exist; create it"
    assert missing in failed(command_line(*command, tmp_path / "no" / "r.html"))


def test_a_hostile_name_stays_text_in_svg_and_page(failing: Report) -> None:
    name = "<script>x</script>a\x1b[2J\u202eb\x00\ud800]]>&lt;!--\"' onload=x"
    made = Graph(name, (Value(name),), (Value("y"),), (Node("Tanh", (name,), ("y",)),), {})
    svg = picture(made, name, fused={})
    tags = {each.tag.partition("}")[2] for each in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "path", "g", "title", "rect", "text"}
    page = render(failing, name)
    for text in (svg, page):
        assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\u202e\ud800-\udfff]*", text)
        assert text.encode()
    assert "script" not in Page(page).tags
