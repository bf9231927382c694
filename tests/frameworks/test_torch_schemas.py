"""Whether the rules of aten's operators name the arguments that PyTorch's schemas have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from onernn.adapters.torch import lower  # noqa: E402, F401
from onernn.adapters.torch.table import INERT, RULES, VIEWS, resolve  # noqa: E402


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


def types(name: str) -> list[str]:
    return [f"{each.real_type}" for each in schema(name).arguments]


def overloads(base: str) -> list[str]:
    """The operators of aten of this name that take no further tensor for the result."""
    packet = getattr(torch.ops.aten, base, None)
    names = [each for each in (packet.overloads() if packet else ()) if not each.endswith("out")]
    return [base if each == "default" else f"{base}.{each}" for each in names]


def other_names(base: str) -> set[str]:
    """The aliases that PyTorch's own tests know, and the forms in place and without a view."""
    from torch.testing._internal.common_methods_invocations import op_db

    def plain(public: str) -> str:
        return public.removeprefix("torch.").removeprefix("nn.functional.").replace(".", "_")

    groups = [{plain(each.name) for each in (known, *known.aliases)} for known in op_db]
    aliases = {name for group in groups if base in group for name in group}
    return {form for name in {base, *aliases} for form in (name, f"{name}_", f"{name}_copy")}


BASES = sorted({name.partition(".")[0] for names in NAMES.values() for name in names})


@pytest.mark.parametrize("base", BASES)
def test_every_other_name_of_a_supported_operator_is_supported(base: str) -> None:
    known = [types(name) for name in overloads(base) if name in RULES]
    for other in other_names(base):
        for name in overloads(other):
            assert types(name) not in known or resolve(name) in RULES, name
