"""A report as one HTML file that needs nothing else: verdict, cause, graph, errors, versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.common.adapter import require
from onernn.adapters.registry import RUNTIMES, pass_name
from onernn.fuse_passes import fuse
from onernn.ir.errors import LibraryError, MissingDependencyError, OnernnError, printable
from onernn.ir.files import replacing
from onernn.ir.graph import native_types
from onernn.ir.ragged import Batch, Ragged
from onernn.verification.reporting.picture import fused_values, picture
from onernn.verification.reporting.plots import Plot, plots
from onernn.verification.verifying import Evidence, Report

_PLOTTED = 6
"""Outputs with pictures; tables tell of all of them."""
_AROUND = 4
"""Matched nodes shown before and after the first that departs."""


class Plotted(NamedTuple):
    """An output's pictures."""

    name: str
    state: bool
    passed: bool
    plots: list[Plot]


def check_report(path: str | Path) -> None:
    """Raises what `write_report` would, before anything is run."""
    for module in ("jinja2", "matplotlib"):
        require(module, "report")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path}: a report is a file, this is a folder")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no such folder to write a report into")


def write_report(report: Report, path: str | Path, command: str = "") -> None:
    """Writes a verdict as a page. ``command``: what reproduces it, as typed.

    Raises `MissingDependencyError` without jinja2 and matplotlib, `OSError` where it cannot write.
    """
    check_report(path)
    page = render(report, command)
    with replacing(path) as stream:
        stream.write(page.encode())


def render(report: Report, command: str = "") -> str:
    """The page as text."""
    return filled("report.html.jinja", _content(report, command))


def filled(name: str, content: Mapping[str, Any]) -> str:
    """The page that a template makes; all texts are escaped, but SVGs that it calls safe."""
    jinja2 = require("jinja2", "report")
    templates = resources.files("onernn.verification.reporting").joinpath("templates")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda each: templates.joinpath(each).read_text("utf-8")),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template(name).render(**content)


def _shown(value: Any) -> Any:
    """A text as the page shows it, before it is escaped; SVGs were escaped when drawn."""
    return printable(value, "\n") if type(value) is str else value


def number(value: float) -> str:
    """Three digits; a dash for what is no number."""
    return "–" if value != value else "0" if value == 0 else f"{value:.3g}"


def _content(report: Report, command: str) -> dict[str, Any]:
    evidence = report.evidence
    if evidence is None:
        raise ValueError("this report was made without evidence: it has no page")
    failed = [output for output in report.outputs if not output.passed]
    return {
        "report": report,
        "failed": failed,
        "command": command,
        "reference": evidence.reference.who,
        "model": evidence.model.name,
        "headline": _headline(report),
        "tolerances": evidence.tolerances,
        "outputs": [(each, report.errors[each.name]) for each in report.outputs],
        "inputs": [(name, _described(value)) for name, value in evidence.inputs.items()],
        "plotted": list(_plotted(report, evidence)),
        "layers": _around(report),
        "fusion": _fusion(report, evidence),
        "kernels": report.kernels.splitlines(),
        "versions": list(versions()),
    }


def _headline(report: Report) -> str:
    count = len(report.outputs)
    if report.passed:
        return f"All {count} outputs match." if count > 1 else "The output matches."
    failed = sum(not output.passed for output in report.outputs)
    which = "The output differs" if count == 1 else f"{failed} of {count} outputs differ"
    return f"{which} from the reference."


def _described(value: Batch) -> str:
    if isinstance(value, Ragged):
        lengths = ", ".join(map(str, value.lengths[:12])) + (", …" if len(value) > 12 else "")
        return f"{value.data.dtype} {value.data.shape}, {len(value)} sentences of {lengths} words"
    return f"{value.dtype} {value.shape}"


def _plotted(report: Report, evidence: Evidence) -> Iterator[Plotted]:
    """Failing outputs first."""
    verdicts = {output.name: output.passed for output in report.outputs}
    profiles = sorted(report.profiles, key=lambda each: verdicts[each.name])
    for each in profiles[:_PLOTTED]:
        tolerance = evidence.tolerances[each.name]
        found = report.errors[each.name]
        largest = found.max_abs / found.max_rel if found.max_rel > 0 else 0.0
        allowed = tolerance.atol + tolerance.rtol * largest
        made = plots(each, allowed)
        if made:
            yield Plotted(each.name, each.state, verdicts[each.name], made)


def _around(report: Report) -> list[dict[str, Any]]:
    """The matched nodes around the first that departs, or the recurrent ones where all agree."""
    layers, first = report.layers, report.first
    if first is None:
        chosen = [each for each in layers if each.part]
    else:
        at = layers.index(first)
        chosen = list(layers[max(0, at - _AROUND) : at + _AROUND + 1])
    return [{"layer": each, "first": each is first} for each in chosen]


def _fusion(report: Report, evidence: Evidence) -> dict[str, Any]:
    result = fuse(evidence.model)
    before, after = evidence.model, result.model
    old, new = fused_values(before, after)
    apart = set()
    if not report.passed and report.first is not None:
        apart.add(report.first.value.partition("@")[0])
    fired = [
        f"{each.name}: {native_types(each.origin)}"
        + (f" ({name} in Paddle)" if (name := pass_name(each)) else "")
        for each in result.applied
    ]
    return {
        "before": picture(before, "The graph as it was read", fused=old, apart=apart),
        "after": picture(after, "The graph after fusion", fused=new, apart=apart),
        "nodes": (len(before.nodes), len(after.nodes)),
        "coloured": next(iter(new.values()), ""),
        "fired": fired,
        "refusals": list(map(str, result.refusals)),
        "apart": bool(apart),
    }


def versions() -> Iterator[tuple[str, str]]:
    """Of this package, what it runs on, and the frameworks that are here."""
    yield "onernn", metadata.version("onernn")
    yield "numpy", metadata.version("numpy")
    yield from ((each.name, each.version) for each in RUNTIMES.values() if each.version)
    yield "Python", platform.python_version()
    yield "machine", f"{platform.system()} {platform.machine()}"
    try:
        from onernn.backend.onednn.library import load_library

        library = load_library()
        yield "oneDNN", f"{library.version}, {library.effective_isa}"
    except (LibraryError, MissingDependencyError, OnernnError) as error:
        yield "oneDNN", str(error)
