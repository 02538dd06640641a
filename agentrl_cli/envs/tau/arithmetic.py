"""Arithmetic on text without `eval`, with the results and errors that Python's own would give."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

LARGEST = 1 << 22  # bits of an integer; beyond it no float holds the result either
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def evaluate(expression: object) -> Any:
    """The value of an expression of digits, points, parentheses and + - * /.

    Raises what evaluating it in Python would: SyntaxError, TypeError, ZeroDivisionError,
    OverflowError (also for integers that would take too long).
    """
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    return _value(ast.parse(expression.lstrip(" \t"), "<string>", "eval").body)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp):
        return _bounded(_binary(node.op, _value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp):
        return UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Call):
        raise _not_callable(_value(node.func), node.args)
    if isinstance(node, ast.Tuple) and not node.elts:
        return ()
    if isinstance(node, ast.Constant):
        return node.value
    raise SyntaxError("invalid syntax (<string>, line 1)")


def _not_callable(called: Any, arguments: list[ast.expr]) -> TypeError:
    """What Python says of `2(3)`, which nobody means, and of `2(*3)`."""
    for argument in arguments:
        value = _value(argument.value if isinstance(argument, ast.Starred) else argument)
        if isinstance(argument, ast.Starred) and value != ():
            kind = type(value).__name__
            return TypeError(f"{called} argument after * must be an iterable, not {kind}")
    return TypeError(f"'{type(called).__name__}' object is not callable")


def _binary(kind: ast.operator, left: Any, right: Any) -> Any:
    if not isinstance(kind, ast.Pow):
        return BINARY[type(kind)](left, right)
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and right > 0 and left.bit_length() * right > LARGEST and abs(left) > 1:
        raise OverflowError("int too large to convert to float")
    return operator.pow(left, right)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > LARGEST:
        raise OverflowError("int too large to convert to float")
    return value
