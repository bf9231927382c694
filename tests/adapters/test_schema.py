"""Messages from a page of text: protobuf's own descriptors say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from onernn.adapters.common.files import Schema
from onernn.adapters.onnx import read as onnx
from onernn.adapters.paddle import messages as paddle

PAGES = {"ONNX": onnx.SCHEMA, "Paddle": paddle.SCHEMA}


def described(package: str, page: str) -> FileDescriptorProto:
    """The page, by protobuf's own messages."""
    out = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, body in re.findall(r"(\w+):([^:]+)(?:\n|$)", page):
        message = out.message_type.add(name=name)
        for field in body.split(";"):
            label, kind, what, _, number = field.split()
            added = message.field.add(name=what, number=int(number))
            added.label = FieldDescriptorProto.Label.Value(f"LABEL_{label.upper()}")
            if kind[0].isupper():
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{package}.{kind}"
            else:
                added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return out


@pytest.mark.parametrize("framework", PAGES)
def test_the_descriptors_are_those_of_protobuf_s_own_messages(framework: str) -> None:
    schema = Schema(framework, PAGES[framework])
    wanted = described(f"onernn.{framework.lower()}", PAGES[framework])
    got = FileDescriptorProto()
    schema.message(wanted.message_type[0].name).DESCRIPTOR.file.CopyToProto(got)
    for message in got.message_type:
        for field in message.field:
            field.ClearField("json_name")  # derived from the name
    assert (got.package, [*got.message_type]) == (wanted.package, [*wanted.message_type])


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_messages_are_of_the_implementation_that_the_environment_asks_for(
    implementation: str,
) -> None:
    code = (
        "from onernn.adapters.onnx.read import MESSAGES\n"
        "made = MESSAGES.message('GraphProto')(name='g')\n"
        "made.node.add(op_type='Tanh', input=['x']).attribute.add(ints=[1, 2])\n"
        "again = MESSAGES.message('GraphProto').FromString(made.SerializeToString())\n"
        "assert again == made and again.node[0].attribute[0].ints == [1, 2]\n"
        "print(type(type(made)).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("python_message" in done.stdout) == (implementation == "python")
