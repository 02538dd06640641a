"""A user's own pages and questions: a folder with questions.jsonl, or a file of HotpotQA or
2WikiMultiHopQA. What of a row counts, and into which split it goes, is decided here."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.base import SPLITS
from agentrl_cli.envs.wiki.actions import MAX_ARGUMENT
from agentrl_cli.envs.wiki.folder import clean, read_folder
from agentrl_cli.envs.wiki.hotpot import Paragraphs
from agentrl_cli.envs.wiki.pages import Encyclopedia, link_key
from agentrl_cli.envs.wiki.worlds import Row, WikiWorld

QUESTIONS = "questions.jsonl"
MOST_BYTES = 2**30  # of a file of questions
TEXT_LENGTH = 2000  # characters of a question


@dataclass(frozen=True)
class _Source:
    """A file of questions, the key that names it, and whether every row must name lines that prove
    it."""

    file: Path
    key: str
    needs_proof: bool

    def unreadable(self, number: int, reason: str) -> UserError:
        """What is wrong with a row, and what helps."""
        return UserError(
            f"row {number} of '{self.file}' is no question ({reason}); mend or delete it"
        )


@lru_cache(maxsize=4)
def read_user_data(
    data: str,
    test_data: str | None,
    test_share: float,
    val_share: float,
    seed: int,
    needs_proof: bool,
) -> WikiWorld:
    """The pages and the questions. Raises UserError for what cannot be read, with the row."""
    path = Path(os.path.expanduser(data))
    tested = None if test_data is None else Path(os.path.expanduser(test_data))
    read = _folder if files.is_folder(path) else _paragraph_file
    encyclopedia, rows, test_rows = read(path, tested, needs_proof)
    shares = {"row": 0.0 if tested else test_share, "val": val_share}
    for row in rows:
        draws = {name: derive_seed("wiki", name, seed, row["question"]) % 10**6 for name in shares}
        test, val = (draws[name] < share * 10**6 for name, share in shares.items())
        row.setdefault("split", "test" if test else "val" if val else "train")
    for row in test_rows:
        row["split"] = "test"
    others = {row["question"] for row in rows if row["split"] != "val"}
    rows = [row for row in rows if row["split"] != "val" or row["question"] not in others]
    known = {row["question"] for row in test_rows}
    kept = [row for row in rows if row["question"] not in known] + test_rows
    return WikiWorld(
        "wiki-data", encyclopedia, *(_by_split(kept, is_article) for is_article in (0, 1))
    )


def _by_split(rows: list[Row], is_article: int) -> dict[str, list[Row]]:
    """The questions or the articles of each split, without its name in the row."""
    found: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for row in rows:
        if (row["kind"] == "article") == bool(is_article):
            found[row["split"]].append({key: row[key] for key in row if key != "split"})
    return found


def _folder(
    folder: Path, tested: Path | None, needs_proof: bool
) -> tuple[Encyclopedia, list[Row], list[Row]]:
    if not files.is_file(folder / QUESTIONS):
        line = (
            f"'{folder}' has no {QUESTIONS}: one JSON object a line, with 'question' and 'answer'"
        )
        raise UserError(f"{line}; write one, or name it as env.data")
    encyclopedia, titles = read_folder(folder)
    sources = [_Source(folder / QUESTIONS, "env.data", needs_proof)]
    sources += [_Source(tested, "env.test_data", needs_proof)] if tested else []
    found = [
        [_own_row(source, n, row, encyclopedia, titles, f"{'t' if i else 'q'}{n}")
         for n, row in _json_lines(source)]
        for i, source in enumerate(sources)
    ]  # fmt: skip
    return encyclopedia, found[0], found[1] if tested else []


def _own_row(
    source: _Source, number: int, row: Any, pages: Encyclopedia, titles: dict[str, str], name: str
) -> Row:
    """A row of questions.jsonl as task data."""
    if not isinstance(row, dict):
        raise source.unreadable(number, "not an object")
    topic = row.get("topic")
    try:
        if isinstance(topic, str) and clean(topic):
            lines = _steps(row.get("lines"), pages, titles)
            if not lines:
                raise ValueError("no 'lines' of its topic")
            question, answers, kind = f"Collect the lines about {clean(topic)}.", [], "article"
        else:
            question, answers, kind = _text(row, "question"), _answers(row), "question"
            lines = _steps(row.get("evidence") or [], pages, titles)
            _require_proof(source, lines, "evidence")
    except ValueError as error:
        raise source.unreadable(number, str(error)) from None
    found: Row = {
        "id": name,
        "kind": kind,
        "question": question,
        "answers": answers,
        "proof": lines,
    }
    if kind == "article":
        found["topic"] = clean(str(topic))
    if row.get("split") is not None:
        if row["split"] not in SPLITS:
            raise source.unreadable(number, f"its split is {str(row['split'])[:40]!r}")
        found["split"] = row["split"]
    return found


def _steps(value: Any, pages: Encyclopedia, titles: dict[str, str]) -> list[list[list[Any]]]:
    """Lines [title or place, number or words of the line] as steps of a proof."""
    if not isinstance(value, list):
        raise ValueError("its lines are no list")
    return [[_line(pair, pages, titles)] for pair in value]


def _line(pair: Any, pages: Encyclopedia, titles: dict[str, str]) -> list[Any]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError(f"a line is {str(pair)[:60]}: give [title, number] or [title, words]")
    title = titles.get(pair[0]) or pages.titles.get(link_key(pair[0]))
    if title is None:
        raise ValueError(f"no page is called '{pair[0][:60]}'")
    lines, wanted = pages.pages[title].lines, pair[1]
    if isinstance(wanted, str) and clean(wanted):
        words = clean(wanted).casefold()
        found = next((n for n, line in enumerate(lines, 1) if words in line.casefold()), None)
        if found is None:
            raise ValueError(f"'{title}' has no line with '{clean(wanted)[:60]}'")
        return [title, found]
    if type(wanted) is not int or not 1 <= wanted <= len(lines):
        raise ValueError(f"'{title}' has lines 1 to {len(lines)}, and no line {str(wanted)[:20]}")
    return [title, wanted]


def _paragraph_file(
    file: Path, tested: Path | None, needs_proof: bool
) -> tuple[Encyclopedia, list[Row], list[Row]]:
    paragraphs = Paragraphs()
    rows = _hotpot_rows(_Source(file, "env.data", needs_proof), paragraphs, "q")
    test = _Source(tested, "env.test_data", needs_proof) if tested else None
    test_rows = _hotpot_rows(test, paragraphs, "t") if test else []
    return paragraphs.encyclopedia(), rows, test_rows


def _hotpot_rows(source: _Source, paragraphs: Paragraphs, prefix: str) -> list[Row]:
    found: list[Row] = []
    for number, row in _json_rows(source):
        try:
            if not isinstance(row, dict):
                raise ValueError("not an object")
            asked = {"question": _text(row, "question"), "answers": _answers(row)}
            titles, facts = paragraphs.add(row), row.get("supporting_facts") or []
            _require_proof(source, facts, "supporting_facts")
            proof = paragraphs.proof(row, titles) if facts else []
        except ValueError as error:
            raise source.unreadable(number, str(error)) from None
        if proof or not source.needs_proof:
            kind = clean(str(row.get("type") or "question")).replace("-", "_")[:40]
            found.append({"id": f"{prefix}{number}", "kind": kind, **asked, "proof": proof})
    if not found:
        line = f"no question of '{source.file}' has a supporting fact within its paragraphs"
        raise UserError(f"{line}; give another file, or set env.reward=answer")
    return found


def _require_proof(source: _Source, proof: list[Any], name: str) -> None:
    if source.needs_proof and not proof:
        raise ValueError(f"no '{name}', which env.reward=both and evidence need; or use answer")


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not clean(value):
        raise ValueError(f"no '{name}'")
    return clean(value)[:TEXT_LENGTH]


def _answers(row: dict[str, Any]) -> list[str]:
    """One answer, or a list of forms of it."""
    value = row.get("answer")
    values = value if isinstance(value, list) else [value]
    texts = [clean(str(value)) for value in values if _is_answer(value)]
    if not texts or len(texts) < len(values):
        raise ValueError("no 'answer'")
    if (longest := max(map(len, texts))) > MAX_ARGUMENT:
        raise ValueError(f"its answer has {longest} characters, and SUBMIT takes {MAX_ARGUMENT}")
    return texts


def _is_answer(value: Any) -> bool:
    """Whether it is text that says something, or a number."""
    if isinstance(value, str):
        return bool(clean(value))
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _json_rows(source: _Source) -> Iterable[tuple[int, Any]]:
    """The rows of a .json list or of .jsonl lines, counted from 1."""
    if source.file.suffix.lower() == ".jsonl":
        return _json_lines(source)
    text = _content(source)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{source.file}' is no JSON ({error}); give a list of questions") from None
    if not isinstance(value, list) or not value:
        raise UserError(
            f"'{source.file}' is no list of questions; give one as HotpotQA's files are"
        )
    return enumerate(value, start=1)


def _json_lines(source: _Source) -> list[tuple[int, Any]]:
    rows: list[tuple[int, Any]] = []
    for number, line in enumerate(_content(source).splitlines(), start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise source.unreadable(number, "no JSON") from None
    if not rows:
        raise UserError(f"'{source.file}' holds no question; write one a line")
    return rows


def _content(source: _Source) -> bytes:
    file = source.file
    may_be_folder = source.key == "env.data"
    remedy = "give a folder of pages with questions.jsonl, or " if may_be_folder else "give "
    remedy += "a .json or .jsonl file of questions"
    try:
        if file.suffix.lower() not in (".json", ".jsonl"):
            kind = "neither a folder nor a .json file" if may_be_folder else "no .json file"
            raise UserError(f"{source.key} '{file}' is {kind}; {remedy}")
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"'{file}' is larger than {MOST_BYTES} bytes; give a part of it")
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"'{file}' cannot be read ({error.strerror}); {remedy}") from None
