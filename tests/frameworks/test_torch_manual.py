"""Blocks of the manual that need torch, or keras on torch: they run, and print what is shown."""

import os

from support.framework_pages import checked_pages
from support.manual import REPO

os.environ.setdefault("KERAS_BACKEND", "torch")

TestPages = checked_pages("torch")
TestKerasPages = checked_pages("keras")


def test_the_page_on_ipex_names_each_argument_without_effect() -> None:
    from onernn.adapters.torch.plugin import IpexOptions

    page = (REPO / "docs" / "moving" / "ipex.md").read_text()
    names = IpexOptions.__annotations__
    assert names and not [name for name in names if f"`{name}`" not in page]
