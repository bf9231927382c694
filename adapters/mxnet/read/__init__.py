"""MXNet's files: symbols, parameters, and which of these belong to which variable."""

from onernn.adapters.mxnet.read.symbols import (
    ENDING,
    VARIABLE,
    Entry,
    Files,
    Symbol,
    SymbolNode,
    find,
    is_symbol,
    parse_symbol,
    read_symbol,
)

__all__ = [
    "ENDING",
    "VARIABLE",
    "Entry",
    "Files",
    "Symbol",
    "SymbolNode",
    "find",
    "is_symbol",
    "parse_symbol",
    "read_symbol",
]
