"""Keeps the links from formulas to lines in docs/algorithms.md right.

`python tools/formula_links.py` writes the line at which each named definition stands; with
`--check` it fails where one is wrong.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\(\.\./(?P<file>agentrl_cli/[\w/]+\.py)#L\d+\)")


def definitions(file: Path) -> dict[str, int]:
    """The line of every function, class and method of a file, methods as `Class.method`."""
    lines: dict[str, int] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines[node.name] = node.lineno
        if isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef)]
            lines |= {f"{node.name}.{method.name}": method.lineno for method in methods}
    return lines


def relinked(text: str) -> str:
    """The page with the right line in every link. Raises KeyError for a name that is gone."""

    def link(match: re.Match[str]) -> str:
        line = definitions(ROOT / match["file"])[match["name"]]
        return f"[`{match['name']}`](../{match['file']}#L{line})"

    return LINK.sub(link, text)


def main() -> int:
    """Write the page, or check it; 1 where it is wrong."""
    text = PAGE.read_text()
    right = relinked(text)
    if "--check" in sys.argv[1:]:
        print("the links are right" if text == right else f"run python {Path(__file__).name}")
        return int(text != right)
    PAGE.write_text(right)
    return 0


if __name__ == "__main__":
    sys.exit(main())
