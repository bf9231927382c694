"""Whether the rules of aten's operators name the arguments that PyTorch's schemas have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from onernn.adapters.torch import lower  # noqa: E402, F401
from onernn.adapters.torch.table import INERT, RULES, VIEWS  # noqa: E402


def schema(name: str) -> Any:
    operator, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload or "default")._schema


NAMES: dict[Any, list[str]] = {}
for name, signature in RULES.items():
    if not name.startswith(("_operator.", "torch.")):  # Python's own
        NAMES.setdefault(signature, []).append(name)


@pytest.mark.parametrize("signature", NAMES, ids=[names[0] for names in NAMES.values()])
def test_a_rule_reads_the_arguments_that_the_schemas_of_its_operators_have(signature: Any) -> None:
    known = {name: {each.name for each in schema(name).arguments} for name in NAMES[signature]}
    for each in signature.parameters:
        lacking = [name for name in known if each.name not in known[name]]
        required = each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        assert each.name == "op" or len(lacking) < (1 if required else len(known)), each.name
    read = {each.name for each in signature.parameters} | {*signature.only, *INERT, "params"}
    for name in known:  # an argument that is always there and never read refuses every program
        required = {e.name for e in schema(name).arguments if not e.has_default_value()}
        assert required <= read, name


def test_an_operator_that_may_return_the_memory_of_its_input_is_a_view() -> None:
    names = [name for names in NAMES.values() for name in names]
    aliases = {name for name in names if any(each.alias_info for each in schema(name).returns)}
    assert aliases <= VIEWS
