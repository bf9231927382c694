"""What PyTorch's files call the data types of tensors, by NumPy's names."""

from __future__ import annotations

import numpy as np

DTYPES = {
    name: np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(name, name)).newbyteorder("<")
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "bool"),
    )
}
"""torch.NAME, and how its numbers lie in a file; bfloat16 becomes float32 of the same values."""

STORAGES = {
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "BFloat16Storage": "bfloat16",
    "BoolStorage": "bool",
}
"""The classes of storages that pickles name."""

SCALAR_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32"},
    **{8: "float64", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64"},
}
"""The numbers of an exported program: ScalarType of torch/_export/serde/schema.py."""

SAFETENSORS = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"},
    **{"I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16"},
    **{"U32": "uint32", "U64": "uint64", "BOOL": "bool"},
}
