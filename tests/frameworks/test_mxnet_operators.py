"""The recorded operators are those of this MXNet; and the names that MXNet has for them."""

from __future__ import annotations

import ctypes

import mxnet as mx
import pytest
from support.recorded_operators import Recorded, differences, read_recorded
from tests.frameworks.mxnet_graphs import run_recorded

from onernn.adapters.mxnet.table import ALIASES, RULES, find_rule


@pytest.mark.parametrize("case", read_recorded(), ids=lambda case: case.name)
def test_an_operator_gives_what_was_recorded(case: Recorded) -> None:
    theirs = run_recorded(case)
    assert not (found := differences(case.outputs, [*theirs.values()], theirs)), found


def registered_as(name: str) -> str:
    """What MXNet calls the operator behind a name; "" where there is none."""
    library, handle = mx.base._LIB, ctypes.c_void_p()
    if library.NNGetOpHandle(mx.base.c_str(name), ctypes.byref(handle)):
        return ""
    strings = [ctypes.c_char_p() for _ in range(4)]
    count = mx.base.mx_uint()
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    pointers = [ctypes.byref(each) for each in (*strings[:2], count, *lists, *strings[2:])]
    mx.base.check_call(library.MXSymbolGetAtomicSymbolInfo(handle, *pointers))
    return mx.base.py_str(strings[0].value)


def test_other_names_stand_for_the_operators_that_mxnet_means() -> None:
    for alias, name in ALIASES.items():
        assert registered_as(name) == name, name
        if found := registered_as(alias):  # some are older than 1.9.1
            assert found == name or find_rule(found) is find_rule(name), (alias, found)


def registered() -> list[str]:
    """All names of operators that MXNet has, aliases among them."""
    count, names = mx.base.mx_uint(), ctypes.POINTER(ctypes.c_char_p)()
    library = mx.base._LIB
    mx.base.check_call(library.NNListAllOpNames(ctypes.byref(count), ctypes.byref(names)))
    return [mx.base.py_str(names[at]) for at in range(count.value)]


def test_every_name_that_mxnet_has_stands_for_the_operator_that_it_means() -> None:
    found = {name: find_rule(name) for name in registered()}
    assert {"_PlusScalar", "_RModScalar", "_sparse_relu", "_npx_rnn"} < found.keys()
    for name, rule in found.items():
        assert find_rule(registered_as(name)) is rule, name


def test_the_table_has_no_operator_that_mxnet_has_not() -> None:
    assert [name for name in RULES if registered_as(name) != name] == []
