"""The wheel for 64-bit ARM: its tags, what is inside, what it needs."""

from __future__ import annotations

import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from onernn.kernels import build

AARCH64 = 183  # the machine in an ELF header


@pytest.fixture(scope="module")
def wheel(repo: Path) -> zipfile.ZipFile:
    made = sorted(repo.glob("out/aarch64/wheel/*manylinux_2_17_aarch64.whl"))
    if not made:
        pytest.skip("no wheel for ARM here: make aarch64-wheel")
    return zipfile.ZipFile(made[0])


def read(wheel: zipfile.ZipFile, name: str) -> bytes:
    (path,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(path)


def test_its_tags_are_those_of_any_python_on_an_arm_with_glibc_2_17(wheel: zipfile.ZipFile) -> None:
    tags = message_from_bytes(read(wheel, "WHEEL")).get_all("Tag")
    assert tags == ["py3-none-manylinux_2_17_aarch64", "py3-none-manylinux2014_aarch64"]


def test_it_has_a_library_for_each_set_and_no_other_machines_code(wheel: zipfile.ZipFile) -> None:
    libraries = {Path(name).name: name for name in wheel.namelist() if ".so" in Path(name).name}
    assert {*libraries} == {build.library_of(isa).name for isa in build.isas("aarch64")}
    for name in libraries.values():
        content = wheel.read(name)
        assert content[:4] == b"\x7fELF" and int.from_bytes(content[18:20], "little") == AARCH64
        assert build.built_from(content) is not None


def test_it_needs_no_onednn_there(wheel: zipfile.ZipFile) -> None:
    needed = message_from_bytes(read(wheel, "METADATA")).get_all("Requires-Dist", [])
    arm = {"platform_machine": "aarch64", "platform_system": "Linux", "extra": ""}
    found = {r.name for r in map(Requirement, needed) if not r.marker or r.marker.evaluate(arm)}
    assert "numpy" in found and not [name for name in found if name.startswith("onednn")]
