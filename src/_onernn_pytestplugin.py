"""What pytest loads by itself wherever onernn is installed: ONERNN_REQUIRE, --conformance-table.

ONERNN_REQUIRE names the frameworks that must be there ("paddle", or "paddle,torch"), so that no run
passes by skipping them. The option writes the results of the conformance kit as Markdown; reports
of JUnit (``--junitxml``) have the fields of each case as properties. The suite itself is
`onernn.verification.suite`. This file is outside of the package because pytest imports it in every
run: onernn would bring NumPy along, early.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VARIABLE = "ONERNN_REQUIRE"


def absent() -> list[str]:
    """Returns the required modules that are not installed."""
    names = filter(None, re.split(r"[,\s]+", os.environ.get(VARIABLE, "")))
    return sorted(name for name in names if not name.isidentifier() or find_spec(name) is None)


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--conformance-table",
        type=Path,
        metavar="FILE",
        help="write the results of onernn's conformance kit as a table in Markdown",
    )


def pytest_configure(config: Any) -> None:
    """Stops the run if a required framework is missing, or if the table cannot be written."""
    import pytest

    if missing := absent():
        raise pytest.UsageError(f"{VARIABLE}: {', '.join(missing)} is not installed")
    file = config.getoption("--conformance-table")
    if file and not hasattr(config, "workerinput"):
        try:
            file.write_text("")
        except OSError as error:
            raise pytest.UsageError(f"--conformance-table {file}: {error.strerror}") from error
        config.pluginmanager.register(Table(file))


def pytest_itemcollected(item: Any) -> None:
    """Gives a case of the kit its fields as properties, which reports have."""
    if getattr(item, "originalname", "") == "test_conforms" and hasattr(item.cls, "_title"):
        case = item.callspec.params["combination"]
        item.user_properties += [("subject", item.cls._title()), *case._asdict().items()]


class Table:
    """Counts the results of each subject's cells, and writes them to a file when pytest ends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts = defaultdict[tuple[str, str], Counter[str]](Counter)
        self.reasons = Counter[tuple[str, str]]()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        fields = dict(report.user_properties)
        if "subject" not in fields or (report.when != "call" and report.passed):
            return
        known = getattr(report, "wasxfail", None) if report.skipped else None
        kind = "FAIL" if report.failed else "known" if known is not None else report.outcome
        self.counts[fields["cell"], fields["subject"]][kind] += 1
        if known is not None:
            self.reasons[fields["subject"], known.removeprefix("reason: ")] += 1
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.file.write_text("\n".join([*self.lines(), ""]), "utf-8")

    def lines(self) -> Iterator[str]:
        """Yields the table: a row for each cell, a column for each subject; then the failures."""
        if not self.counts:
            yield "No case of the conformance kit ran."
            return
        cells, subjects = (sorted(set(names)) for names in zip(*self.counts, strict=True))
        yield from (_row(["cell", *subjects]), _row(["---"] * (1 + len(subjects))))
        for cell in cells:
            counts = (
                sorted(self.counts[cell, subject].items(), reverse=True) for subject in subjects
            )
            yield _row([cell, *(", ".join(f"{n} {kind}" for kind, n in each) for each in counts)])
        yield ""
        for (subject, reason), count in sorted(self.reasons.items()):
            yield f"- {subject}: {count} known failures: {reason}"
        yield from (f"- FAIL: `{name}`" for name in sorted(self.failed)[:MOST_FAILED])
        if len(self.failed) > MOST_FAILED:
            yield f"- and {len(self.failed) - MOST_FAILED} more"


MOST_FAILED = 20


def _row(entries: list[str]) -> str:
    return f"| {' | '.join(entry.replace('|', '/') for entry in entries)} |"
