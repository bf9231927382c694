"""A framework's protobuf messages from a page of text, in a descriptor pool of their own.

No generated modules: the default pool, which they would use, refuses a second file of the same
name beside an imported framework ("duplicate symbol"). protobuf is imported inside, so that
`import onernn` stays light.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from onernn.core.errors import ModelFormatError


class Schema:
    """Messages written as ``Name: label type field = number; ...``, one after the other.

    Names of messages and enums are not on the wire: nested messages stand flat, and enums are
    int32, so that a type which a later version added arrives as its number rather than as a
    missing field.
    """

    def __init__(self, framework: str, text: str) -> None:
        self._framework, self._text = framework, text

    @cached_property
    def _messages(self) -> dict[str, Any]:
        from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        package = f"onernn.{self._framework.lower()}"
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
        for name, body in re.findall(r"(\w+):([^:]+)(?:\n|$)", self._text):
            described = file.message_type.add(name=name)
            for label, kind, field, number in re.findall(r"(\w+) (\w+) (\w+) = (\d+)", body):
                added = described.field.add(name=field, number=int(number))
                added.label = FieldDescriptorProto.Label.Value(f"LABEL_{label.upper()}")
                if kind[0].isupper():
                    added.type_name = f".{package}.{kind}"
                else:
                    added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        return {
            message.name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message.name}"))
            for message in file.message_type
        }

    def message(self, name: str) -> Any:
        """The protobuf class of a message."""
        return self._messages[name]

    def parse(self, name: str, data: bytes, file: Path, offset: int | None = None) -> Any:
        """The message read from ``data``, complete; else `ModelFormatError` with the place."""
        from google.protobuf.message import DecodeError

        out = self.message(name)()
        what = f"not {'an' if self._framework[0] in 'AEIO' else 'a'} {self._framework} {name}"
        try:
            out.ParseFromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise ModelFormatError(f"{what}: no such protobuf", file, offset) from error
        if missing := out.FindInitializationErrors():
            raise ModelFormatError(f"{what}: {missing[0]} is missing", file, offset)
        return out
