"""The report in a real browser: no error on its console, pictures to be seen, phone and desktop."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.planted import planted_pair

from onernn.verification.references import Against
from onernn.verification.report import write_report
from onernn.verification.verifying import verify

image = pytest.importorskip("matplotlib.image")

# What the page looks like to itself: sizes of pictures, and whether something sticks out.
MEASURE = """<script>addEventListener("load", () => {
  const box = e => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
  const seen = p => box(p)[2] + box(p)[3] > 0;
  const drawn = e => [...e.querySelectorAll("path,rect,text")].filter(seen);
  console.info("MEASURED " + JSON.stringify({
    pictures: [...document.querySelectorAll("svg")].map(
      e => ({box: box(e), marks: drawn(e).length})),
    width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth,
    small: [...document.querySelectorAll("p,td,li,h1,h2")].filter(
      e => parseFloat(getComputedStyle(e).fontSize) < 12).length}));
});</script>"""
MESSAGE = re.compile(r':([A-Z]+):[^\]]*CONSOLE[^\]]*\] "(.*)", source: ', re.DOTALL)


class Seen:
    """What a browser of a width makes of a page: its console, its own measures, a picture of it."""

    def __init__(self, page: str, width: int, folder: Path, name: str) -> None:
        (folder / f"{name}.html").write_text(page + MEASURE)
        # Headless windows have a least width; a frame has none.
        frame = f'<body style="margin:0"><iframe src="{name}.html" style="border:0;width:{width}px'
        (folder / f"{name}-frame.html").write_text(
            f'<!doctype html>{frame};height:6000px"></iframe>'
        )
        shot = folder / f"{name}.png"
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
        command += ["--force-device-scale-factor=1", f"--window-size={max(width, 600)},6000"]
        command += [f"--screenshot={shot}", (folder / f"{name}-frame.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.measured: dict[str, Any] = {}
        self.complaints = []
        for line in lines:
            told = MESSAGE.search(line)
            text = told[2] if told else line
            if text.startswith("MEASURED "):
                self.measured = json.loads(text.removeprefix("MEASURED "))
            else:
                self.complaints.append(text)
        self.pixels = image.imread(shot)

    def inside(self, box: list[float]) -> np.ndarray:
        x, y, width, height = (round(v) for v in box)
        return self.pixels[y : y + height, x : x + width, :3]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report that fails."""
    sound, wrong = planted_pair("gates", 1)
    report = verify(wrong, against=Against(sound))
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(report, file, "onernn verify wrong.onnx --against sound.onnx")
    return file.read_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_is_seen_whole_and_without_complaints(
    page: str, width: int, tmp_path: Path
) -> None:
    seen = Seen(page, width, tmp_path, "report")
    assert seen.complaints == []
    assert seen.measured["width"] == seen.measured["needed"] == width, "nothing sticks out"
    assert seen.measured["small"] == 0
    pictures = seen.measured["pictures"]
    assert len(pictures) == 2
    for each in pictures:
        assert each["box"][2] >= 200 and each["box"][3] >= 100 and each["marks"] >= 4, each
        pixels = seen.inside(each["box"])
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 8, "the picture is blank"


def test_the_check_sees_errors_and_blank_pictures(tmp_path: Path) -> None:
    broken = "<!doctype html><svg width=300 height=300></svg><img src='nothing.png'>"
    broken += "<div style='width:2000px'>.</div><script>nowhere()</script>"
    seen = Seen(broken, 390, tmp_path, "broken")
    assert any("nowhere is not defined" in text for text in seen.complaints)
    assert seen.measured["needed"] > seen.measured["width"]
    (picture,) = seen.measured["pictures"]
    assert picture["marks"] == 0
    assert len(np.unique(seen.inside(picture["box"]).reshape(-1, 3), axis=0)) == 1
