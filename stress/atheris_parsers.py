"""Fuzz the parsers of questions, tool calls and arithmetic with atheris, guided by coverage.

atheris is no dependency. Install it with `pip install atheris` for CPython 3.11, then run `python
stress/atheris_parsers.py -max_total_time=300`. The other flags of libFuzzer work as well.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import atheris  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

sys.path.insert(0, str(Path(__file__).parents[1]))

INSTRUMENT = atheris.instrument_imports  # pyright: ignore[reportAttributeAccessIssue]
with INSTRUMENT(include=["agentrl_cli.envs"]):
    from agentrl_cli.envs.math.answers import boxed, labels, normalise, number
    from agentrl_cli.envs.math.grader import MAX_ANSWER_LENGTH
    from agentrl_cli.envs.tau import actions, retail, tools
    from agentrl_cli.envs.twentyq import questions
    from agentrl_cli.envs.twentyq.world import load_world

SEEDS = (
    "Is it alive?", "Action: is it a hot-dog?", "I guess the answer is a dog.", "Isn't it bigger?",
    'Action:\n{"name": "calculate", "arguments": {"expression": "1 + 2 * 3"}}',
    '<tool_call>[{"function": {"name": "x", "parameters": "{}"}}]</tool_call>', "respond(Hello.)",
    "get_order_details(#W1)", "1 + 2 * (3 - 4.5) // 7", "-(2**10)", r"\boxed{\frac{1}{2}}",
    r"x=3\text{ cm}", r"0.\overline{3}", r"1,234 \times 10^{5}", "12_{5}", r"\sin(30^\circ)",
)  # fmt: skip
WORLD = load_world("small")
TOOLS = {tool.__name__: tool for tool in (*retail.READS, *retail.WRITES)}
OF_SUMS = "0123456789+-*/(). "  # the tools let no other characters pass
OF_PYTHON = (SyntaxError, TypeError, ArithmeticError, RecursionError, ValueError)


def one(data: bytes) -> None:
    """Give one text to every parser. Any error except Python's own errors in arithmetic ends
    the fuzzer."""
    text = data.decode("utf-8", "surrogateescape")
    questions.parse(text, WORLD)
    for style in actions.STYLES:
        json.dumps(actions.parse(text, style, TOOLS).arguments)
    try:
        tools.evaluate("".join(c for c in text if c in OF_SUMS))
    except OF_PYTHON:
        pass
    answer = (boxed(text) or text)[:MAX_ANSWER_LENGTH]
    labels(answer)
    number(normalise(answer))


def main() -> None:
    """Fuzz, starting from the seeds, until the limit of a flag, or forever."""
    with tempfile.TemporaryDirectory() as corpus:
        for place, seed in enumerate(SEEDS):
            (Path(corpus) / str(place)).write_text(seed)
        atheris.Setup([*sys.argv, "-timeout=10", corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
