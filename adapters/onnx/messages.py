"""ONNX's model as protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onernn.adapters.schema import Schema

# What a ModelProto is made of, numbers from onnx/onnx.proto of 1.19; what no reader needs is left
# out (training, quantization, devices, documentation). Packed floats are bytes on the wire, and are
# told as such: as numbers each of them would become an object of Python's. Old writers may not have
# packed them, so they are read by another name, too: see read/tensors.py.
SCHEMA = """
ModelProto:         optional int64 ir_version = 1; optional string producer_name = 2;
                    optional string producer_version = 3; optional GraphProto graph = 7;
                    repeated OperatorSetId opset_import = 8;
                    repeated StringStringEntry metadata_props = 14;
                    repeated FunctionProto functions = 25
OperatorSetId:      optional string domain = 1; optional int64 version = 2
FunctionProto:      optional string name = 1; repeated string input = 4;
                    repeated string output = 5; repeated string attribute = 6;
                    repeated NodeProto node = 7; repeated OperatorSetId opset_import = 9;
                    optional string domain = 10; repeated AttributeProto attribute_proto = 11;
                    optional string overload = 13
GraphProto:         repeated NodeProto node = 1; optional string name = 2;
                    repeated TensorProto initializer = 5; repeated ValueInfoProto input = 11;
                    repeated ValueInfoProto output = 12; repeated ValueInfoProto value_info = 13;
                    repeated SparseTensorProto sparse_initializer = 15
NodeProto:          repeated string input = 1; repeated string output = 2;
                    optional string name = 3; optional string op_type = 4;
                    repeated AttributeProto attribute = 5; optional string domain = 7;
                    optional string overload = 8
AttributeProto:     optional string name = 1; optional float f = 2; optional int64 i = 3;
                    optional bytes s = 4; optional TensorProto t = 5; optional GraphProto g = 6;
                    repeated float floats = 7; repeated int64 ints = 8; repeated bytes strings = 9;
                    optional int32 type = 20; optional string ref_attr_name = 21
ValueInfoProto:     optional string name = 1; optional TypeProto type = 2
TypeProto:          optional TensorType tensor_type = 1; optional Other sequence_type = 4;
                    optional Other map_type = 5; optional Other opaque_type = 7;
                    optional Other sparse_tensor_type = 8; optional Other optional_type = 9
TensorType:         optional int32 elem_type = 1; optional TensorShapeProto shape = 2
Other:              optional int32 elem_type = 1
TensorShapeProto:   repeated Dimension dim = 1
Dimension:          optional int64 dim_value = 1; optional string dim_param = 2
TensorProto:        repeated int64 dims = 1; optional int32 data_type = 2;
                    optional Other segment = 3; repeated bytes float_data = 4;
                    repeated int32 int32_data = 5; repeated bytes string_data = 6;
                    repeated int64 int64_data = 7; optional string name = 8;
                    optional bytes raw_data = 9; repeated bytes double_data = 10;
                    repeated uint64 uint64_data = 11; repeated StringStringEntry external_data = 13;
                    optional int32 data_location = 14
UnpackedTensor:     repeated float float_data = 4; repeated double double_data = 10
SparseTensorProto:  optional TensorProto values = 1
StringStringEntry:  optional string key = 1; optional string value = 2
"""

MESSAGES = Schema("ONNX", SCHEMA)

# AttributeProto.AttributeType -> the field that holds the value; the others are not read.
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}

# TensorProto.DataType -> NumPy's name, and the field of a TensorProto that may hold the numbers.
# NumPy has no bfloat16: numbers of that type are read as float32.
DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64"},
    **{9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"},
}
OTHER_DTYPES = {
    **{8: "string", 14: "complex64", 15: "complex128", 17: "float8e4m3fn", 18: "float8e4m3fnuz"},
    **{19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1"},
    **{24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3", 28: "float6e3m2"},
}
NUMBER_FIELDS = {
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16), "int32_data"),
    **{1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"},
}
BFLOAT16 = 16
NUMBERS = {name: number for number, name in DTYPES.items()}
"""NumPy's name of a dtype -> ONNX's number."""


def reads(node: Any) -> Iterable[str]:
    """What a node reads, its bodies' reads of outside among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            own = {v.name for v in (*attribute.g.input, *attribute.g.initializer)}
            own.update(name for each in attribute.g.node for name in each.output)
            inside = {name for each in attribute.g.node for name in reads(each)}
            inside.update(v.name for v in attribute.g.output)
            yield from sorted(inside - own)
