"""Arithmetic on text without `eval`, with the results and errors that Python's own would give."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

MAX_BITS = 1 << 22  # bits of all integers on the way; no float holds nearly as many
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def evaluate(expression: object) -> Any:
    """The value of an expression of digits, points, parentheses and + - * /.

    Raises what evaluating it in Python would: SyntaxError, TypeError, ZeroDivisionError,
    OverflowError (also for integers that would take too long), and MemoryError, by which the parser
    means that powers are nested too deeply.
    """
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    try:
        tree = ast.parse(expression.lstrip(" \t"), "<string>", "eval")
    except RecursionError:  # the depth at which Python gives up too, in other words
        raise RecursionError("maximum recursion depth exceeded during compilation") from None
    return _value(tree.body)


def _value(tree: ast.expr) -> Any:
    """The value of a tree, parts before wholes and left before right, without recursion: chains
    may be as long as the parser takes them."""
    todo: list[tuple[ast.expr, bool]] = [(tree, False)]
    values: list[Any] = []
    spent = 0
    while todo:
        node, ready = todo.pop()
        parts = _operands(node)
        if not ready:
            todo += [(node, True), *((part, False) for part in reversed(parts))]
            continue
        given = values[len(values) - len(parts) :]
        del values[len(values) - len(parts) :]
        values.append(_apply(node, given))
        spent += values[-1].bit_length() if isinstance(values[-1], int) else 0
        if spent > MAX_BITS:
            raise OverflowError("int too large to convert to float")
    return values.pop()


def _operands(node: ast.expr) -> list[ast.expr]:
    """The expressions inside an expression, in the order of their evaluation."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Call):
        given = [one.value if isinstance(one, ast.Starred) else one for one in node.args]
        return [node.func, *given, *(keyword.value for keyword in node.keywords)]
    return []


def _apply(node: ast.expr, given: list[Any]) -> Any:
    """The value of an expression from those of its parts."""
    if isinstance(node, ast.BinOp):
        return _binary(node.op, *given)
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](*given)
    if isinstance(node, ast.Call):
        raise _not_callable(node, *given)
    if isinstance(node, ast.Tuple) and not node.elts:
        return ()
    if isinstance(node, ast.Constant):
        return node.value
    raise SyntaxError("invalid syntax (<string>, line 1)")


def _not_callable(node: ast.Call, called: Any, argument: Any = ()) -> TypeError:
    """What Python says of `2(3)`, which nobody means, of `2(*3)` and of `2(**3)`. Without commas
    there is one argument at most."""
    kind = type(argument).__name__
    if node.keywords:
        return TypeError(f"{called} argument after ** must be a mapping, not {kind}")
    if node.args and isinstance(node.args[0], ast.Starred) and argument != ():
        return TypeError(f"{called} argument after * must be an iterable, not {kind}")
    return TypeError(f"'{type(called).__name__}' object is not callable")


def _binary(kind: ast.operator, left: Any, right: Any) -> Any:
    if not isinstance(kind, ast.Pow):
        return OPERATORS[type(kind)](left, right)
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and right > 0 and left.bit_length() * right > MAX_BITS and abs(left) > 1:
        raise OverflowError("int too large to convert to float")
    return operator.pow(left, right)
