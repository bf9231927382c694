"""The fault corpus run anew, and compared with the verdicts that its table is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.interpreters import run_python

CORPUS = Path(__file__).parents[2] / "tools" / "fault_corpus"
SOUND = {"right", "absent"}


def entries(framework: str) -> list[str]:
    return list(json.loads((CORPUS / "faults.json").read_text(encoding="utf-8"))[framework])


def check_verdicts(framework: str, entry: str, version: str) -> None:
    """What was right is right, what was slow is slow, and what failed fails, in whatever way.

    Memory that was overwritten shows as wrong numbers today and as a crash tomorrow.
    """
    file = CORPUS / "results" / f"{framework}-{version}.json"
    assert file.exists(), (
        f"no verdicts for {version}; run tools/fault_corpus/run.py {framework} --save"
    )
    told = json.loads(file.read_text(encoding="utf-8"))[entry]
    done = run_python(CORPUS / "run.py", framework, "--only", entry, status=None)
    found = dict(re.findall(rf"  {entry}, (\w+): (.+)\n", done.stdout))
    assert list(found) == list(told), done
    for way, verdict in found.items():
        known = SOUND | {"not fused"}
        assert verdict == told[way] or not {verdict, told[way]} & known, (way, verdict, told[way])
    assert done.returncode == bool(set(found.values()) - SOUND)
