"""Paddle's saved models, read without Paddle."""

from __future__ import annotations

from onernn.adapters.paddle.read.files import Files, combined, find, read_program
from onernn.adapters.paddle.read.program import Block, Operator, Program, Variable

__all__ = ["Block", "Files", "Operator", "Program", "Variable", "combined", "find", "read_program"]
