"""Hostile texts, JSON values and bytes: strategies that damage correct values. A case consists of
texts, bytes, numbers and tuples, so its `repr` repeats it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

DEEP = "\x00deep\x00"  # stands in a JSON value for brackets that no JSON writer would nest
LONG = (300, 2000, 30_000)  # how often a part is repeated: a name, a page, a file
SNIPPETS = (
    "", " ", "\n", "\n\n", "\t", "\r", "\x00", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\u0085",
    "\u2028",
    "\ud800", "\udfff\ud800", "\ue000", "\ue001", "\ue00041\ue001", "\ue0004\ue001",
    "\ue000ff\ue001", "\ue000zz\ue001", "\ufeff", "\u202e",
    "\U0001f600", "İ", "ß", "²", "٣", "é" * 3, "a\u0301", "{", "}", "{}", "{0}", "{name}", "%s",
    "${x}",
    "[", "]", "(", ")", "((", "\\", "\\\\", "\\u", "\\ud800", '"', "'", "`", "<", ">", "<|im_end|>",
    "<|im_start|>assistant\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "Action:",
    "Thought:",
    "null", "true", "NaN", "-Infinity", "1e999", "-0", "0x10", "1_000", "9" * 30, "9" * 5000,
    "1e-400",
    "0.1", "**", "2**3", "9**9**9", "1/0", "--", "//", "\\boxed{", "\\frac{1}{0}", "\\sqrt",
    "\\text{ or }",
    "^{", "_{", "Optimality: Yes", "Optimality: No", "Success", "Failure.", "###STOP###",
    "respond(",
    "__class__", "data", "self", "../x", "/dev/zero", "name", "arguments", "function",
)  # fmt: skip
SCALARS = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0,
    1e308,
    1e-320, float("nan"), float("inf"), -float("inf"), "", " ", "x", "0", "1", "-1", "nan",
    "x" * 300,
    "\x00", "\ud800", "\x1b[31m", "\n", "../victim", "/dev/zero", "/", "~", "é", "\u202e", "\ue000",
    "step",
    "done", [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "x"], DEEP,
)  # fmt: skip
BLOBS = (
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"\n\n", b"\r\n", b"{", b"}", b"[", b'"',
    b":", b",",
    b"[" * 100_000, b"{" * 30_000, b"9" * 5000, b"1e999", b"NaN", b"null", b"\xef\xbb\xbf",
    b"\\ud800",
    b"- ", b"? ", b"&a ", b"*a", b"!!python/object/apply:os.system [x]", b"<<: *a", b"%YAML 9.9\n",
    b"---\n",
    b"\t", b"#", b"'", b"|", b">", b"@", b"`", b"${oc.env:HOME}", b"${steps}", b"${", b"???",
)  # fmt: skip


def any_text() -> st.SearchStrategy[str]:
    """Return any text, including half surrogates, or a hostile snippet."""
    return st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=20))


def any_json() -> st.SearchStrategy[Any]:
    """Return any small JSON value."""
    leaves = st.one_of(st.sampled_from(SCALARS), st.integers(), st.floats(), any_text())
    return st.one_of(
        st.sampled_from(SCALARS),
        st.recursive(
            leaves,
            lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(any_text(), part,
            max_size=3)),
            max_leaves=5,
        ),
    )  # fmt: skip


@st.composite
def mutated_texts(draw: Draw, seeds: Sequence[str], most: int = 3) -> str:
    """Return correct texts with up to `most` changes: cut, repeated, nested, or filled with
    snippets."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, most))):
        text = _mutate_text(draw, text, seeds)
    return text


def _mutate_text(draw: Draw, text: str, seeds: Sequence[str]) -> str:
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 40)))
    before, part, after = text[:begin], text[begin:end], text[end:]
    way = draw(st.integers(0, 9))
    if way == 0:
        return before
    if way == 1:
        return before + after
    if way == 2:
        return before + draw(any_text()) + after
    if way == 3:
        return before + draw(any_text()) + part + draw(any_text()) + after
    if way == 4:
        return before + (part or "x") * draw(st.sampled_from((2, 5, 50))) + after
    if way == 5:
        return text + draw(st.sampled_from(("", "\n", " ", "\n\n"))) + draw(st.sampled_from(seeds))
    if way == 6:
        return before + _long(draw, part or draw(st.sampled_from(SNIPPETS))) + after
    if way == 7:
        left, right = draw(
            st.sampled_from(("()", "[]", "{}", ("\\frac{", "}{2}"), ("-", ""), ("<a>", "</a>")))
        )
        depth = draw(st.sampled_from((1, 3, 60, 5000)))
        return before + left * depth + part + right * depth + after
    if way == 8:
        return "".join(str(9 * int(c)) * 8 if c in "0123456789" else c for c in text)
    return text.swapcase()


def _long(draw: Draw, part: str) -> str:
    """Repeat a part until it is as long as a name, a page or a file."""
    return part * max(1, draw(st.sampled_from(LONG)) // max(1, len(part)))


@st.composite
def mutated_json(draw: Draw, value: Any, most: int = 3) -> str:
    """Return a correct JSON value as text, with up to `most` parts damaged."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        value = _mutate_json(draw, value)
    return dumped(value)


def dumped(value: Any) -> str:
    """Return a value as JSON, with deep brackets inserted."""
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 50_000)


def _mutate_json(draw: Draw, value: Any) -> Any:
    """Damage a random part of the value."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(value)))
        way = draw(st.integers(0, 11))
        if way == 0:
            return {name: item for name, item in value.items() if name != key}
        if way == 1:
            return {draw(any_text()) if name == key else name: item for name, item in value.items()}
        if way == 2:
            return value | {draw(any_text()): draw(any_json())}
        return value | {key: _mutate_json(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        place = draw(st.integers(0, len(value) - 1))
        way = draw(st.integers(0, 9))
        if way == 0:
            return value[:place]
        if way == 1:
            return [*value, value[place]]
        return [*value[:place], _mutate_json(draw, value[place]), *value[place + 1 :]]
    if isinstance(value, str) and value and draw(st.booleans()):
        return _mutate_text(draw, value, [value])
    return draw(any_json())


@st.composite
def mutated_bytes(draw: Draw, content: bytes) -> bytes:
    """Return a correct file, cut, filled with blobs, or with bits flipped or lines moved."""
    for _ in range(draw(st.integers(1, 2))):
        begin = draw(st.integers(0, len(content)))
        end = draw(st.integers(begin, min(len(content), begin + 60)))
        way = draw(st.integers(0, 5))
        blob = draw(st.one_of(st.sampled_from(BLOBS), st.binary(max_size=8)))
        if way == 0:
            content = content[:begin]
        elif way == 1:
            content = content[:begin] + content[end:]
        elif way == 2:
            content = blob
        elif way == 3:
            content = content[:begin] + content[begin:end] * 50 + content[end:]
        else:
            content = content[:begin] + blob + content[begin if way == 4 else end :]
    return content


@st.composite
def mutated_file(draw: Draw, content: bytes) -> bytes:
    """Return a file of JSON, with one value or one per line, in which a value or bytes are
    damaged."""
    if draw(st.integers(0, 3)) == 0:
        return draw(mutated_bytes(content))
    lines = content.split(b"\n")
    whole = len(lines) > 2 and lines[0] in (b"{", b"[")
    place = 0 if whole else draw(st.integers(0, max(0, len([line for line in lines if line]) - 1)))
    right = json.loads(content if whole else lines[place])
    spoilt = draw(mutated_json(right)).encode()
    return spoilt if whole else b"\n".join([*lines[:place], spoilt, *lines[place + 1 :]])
