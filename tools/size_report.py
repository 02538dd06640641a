"""Prints the sizes of the package and fails on a function or a file over its limit."""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LINES, FILE_LINES = 50, 400
FOLDERS = ("agentrl_cli", "tests", "tools")


def functions(tree: ast.Module, file: Path) -> list[tuple[int, str]]:
    """(lines, where) of each function; a decorator does not count."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return [(_lines(node), f"{file}:{node.lineno} {node.name}") for node in found]


def main() -> int:
    """Print the report; 1 where a limit is passed."""
    sizes, over = [], []
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        text, name = file.read_text(), file.relative_to(ROOT)
        found = functions(ast.parse(text), name)
        sizes += [lines for lines, _ in found if name.parts[0] == "agentrl_cli"]
        over += [
            f"{where}: {n} lines, limit {FUNCTION_LINES}"
            for n, where in found
            if n > FUNCTION_LINES
        ]
        length = len(text.splitlines())
        if length > FILE_LINES:
            over.append(f"{name}: {length} lines, limit {FILE_LINES}")
    middle, longest = statistics.median(sizes), max(sizes)
    print(f"{len(sizes)} functions in the package, median {middle:g} lines, longest {longest}")
    print("\n".join(over) if over else "no function or file over its limit")
    return 1 if over else 0


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    sys.exit(main())
