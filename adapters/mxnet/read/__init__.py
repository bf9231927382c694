"""MXNet's files: symbols, parameters, and which of these belong to which variable."""

from onernn.adapters.mxnet.read.symbols import (
    VARIABLE,
    Entry,
    Files,
    Symbol,
    SymbolNode,
    find,
    parse_symbol,
    read_symbol,
)

__all__ = [
    "VARIABLE",
    "Entry",
    "Files",
    "Symbol",
    "SymbolNode",
    "find",
    "parse_symbol",
    "read_symbol",
]
