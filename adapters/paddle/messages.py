"""The protobuf messages of Paddle's program format."""

from __future__ import annotations

from onernn.adapters.common.files import Schema

# The messages of a ProgramDesc. Field numbers: paddle/fluid/framework/framework.proto of 2.6.2.
SCHEMA = """
ProgramDesc:   repeated BlockDesc blocks = 1; optional Version version = 4;
               optional OpVersionMap op_version_map = 5
Version:       optional int64 version = 1
OpVersionMap:  repeated OpVersionPair pair = 1
OpVersionPair: required string op_name = 1; required OpVersion op_version = 2
OpVersion:     required int32 version = 1
BlockDesc:     required int32 idx = 1; required int32 parent_idx = 2; repeated VarDesc vars = 3;
               repeated OpDesc ops = 4; optional int32 forward_block_idx = 5
OpDesc:        repeated OpVar inputs = 1; repeated OpVar outputs = 2; required string type = 3;
               repeated OpAttr attrs = 4; optional bool is_target = 5
OpVar:         required string parameter = 1; repeated string arguments = 2
OpAttr:        required string name = 1; required int32 type = 2; optional int32 i = 3;
               optional float f = 4; optional string s = 5; repeated int32 ints = 6;
               repeated float floats = 7; repeated string strings = 8; optional bool b = 10;
               repeated bool bools = 11; optional int32 block_idx = 12; optional int64 l = 13;
               repeated int32 blocks_idx = 14; repeated int64 longs = 15;
               repeated double float64s = 16; optional string var_name = 17;
               repeated string vars_name = 18; optional double float64 = 19;
               optional Scalar scalar = 20; repeated Scalar scalars = 21
Scalar:        required int32 type = 1; optional bool b = 2; optional int64 i = 3;
               optional double r = 4; optional Complex c = 5
Complex:       required double r = 1; required double i = 2
VarDesc:       required string name = 1; required VarType type = 2; optional bool persistable = 3;
               optional bool need_check_feed = 4; optional bool is_parameter = 5;
               optional bool stop_gradient = 6; repeated VarAttr attrs = 7
VarAttr:       required string name = 1; required int32 type = 2; optional int32 i = 3;
               optional string s = 4; repeated int32 ints = 5
VarType:       required int32 type = 1; optional TensorDesc selected_rows = 2;
               optional LoDTensorDesc lod_tensor = 3; optional LoDTensorDesc tensor_array = 4;
               optional ReaderDesc reader = 5; optional Tuple tuple = 7;
               optional TensorDesc string = 8; optional TensorDesc strings = 9;
               optional TensorDesc vocab = 10; optional TensorDesc sparse_coo = 11;
               optional TensorDesc sparse_csr = 12
TensorDesc:    required int32 data_type = 1; repeated int64 dims = 2
LoDTensorDesc: required TensorDesc tensor = 1; optional int32 lod_level = 2
ReaderDesc:    repeated LoDTensorDesc lod_tensor = 1
Tuple:         repeated int32 element_type = 1
"""

# Entry n names the field of OpAttr that holds the value of an attribute of AttrType n.
ATTRIBUTE_FIELDS = """
    i f s ints floats strings b bools block_idx l blocks_idx longs float64s var_name vars_name
    float64 scalar scalars
""".split()
SCALAR_FIELDS = {1: "b", 2: "i", 3: "r", 4: "c"}

# Codes of VarType.Type for kinds of variables.
LOD_TENSOR, FEED, FETCH, SCOPES, TABLE, ARRAY, READER, RAW = 7, 9, 10, 11, 12, 13, 15, 17
# Codes of VarType.Type for dtypes. NumPy has no bfloat16, so bfloat16 parameters are read as
# float32.
DTYPES = {
    **dict(enumerate("bool int16 int32 int64 float16 float32 float64".split())),
    **dict(enumerate("uint8 int8 bfloat16 complex64 complex128".split(), 20)),
}
CODES = {name: code for code, name in DTYPES.items()}

_MESSAGES = Schema("Paddle", SCHEMA)
message, parse = _MESSAGES.message, _MESSAGES.parse
