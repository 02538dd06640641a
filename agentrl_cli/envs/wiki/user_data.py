"""Read a user's pages and questions: a folder with questions.jsonl, or a file in the public form of
HotpotQA or 2WikiMultiHopQA. Nothing is written.

In a folder, every non-empty line of a Markdown or text file is a numbered line, and long lines are
cut at spaces. A link out of the folder or to a missing page is a dead link. In a question file, the
paragraphs of all questions form one encyclopedia. These files hold no links, so a paragraph links
to the other paragraphs of its questions that it names.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import derive_seed
from agentrl_cli.envs.base import SPLITS
from agentrl_cli.envs.wiki.browser import MAX_ARGUMENT
from agentrl_cli.envs.wiki.pages import (
    Encyclopedia,
    Page,
    Row,
    WikiData,
    encyclopedia_of,
    link_key,
)

QUESTIONS = "questions.jsonl"
SUFFIXES = (".md", ".markdown", ".txt")
MAX_PAGES, MAX_PAGE_BYTES, MAX_FOLDER_BYTES = 100_000, 2**20, 2**29
MAX_QUESTION_BYTES = 2**30  # of a file
LINE_LENGTH, TITLE_LENGTH, QUESTION_LENGTH = 400, 100, 2000  # characters
MAX_LINKS = 200  # of a paragraph that many questions share
EMPTY_PAGE = ("This page is empty.",)
WITHIN_LINES = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
HEADING = re.compile(r"#{1,6}\s+")
LINK = re.compile(
    r"\[\[(?P<wiki>[^\[\]|\n]{1,200})(?:\|(?P<name>[^\[\]\n]{1,200}))?\]\]"
    r"|(?P<image>!?)\[(?P<text>[^\[\]\n]{0,200})\]\((?P<target>[^()\s]{0,300})(?:\s+\"[^\"\n]{0,200}\")?\)"
)
EXTERNAL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|#")  # starts of links that lead to no page
Sentences = tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """A file of questions. `key` is its setting; with `needs_proof` every row must name lines."""

    file: Path
    key: str
    needs_proof: bool

    def invalid_row(self, number: int, reason: object) -> UserError:
        line = f"row {number} of '{self.file}' is not a question ({reason}); correct or delete it"
        return UserError(line, code="invalid-row")

    def require_proof(self, proof: list[Any], name: str) -> None:
        if self.needs_proof and not proof:
            raise ValueError(f"no '{name}', which env.reward=both and evidence need; or use answer")


@lru_cache(maxsize=4)
def read_user_data(
    data: str,
    test_data: str | None,
    test_share: float,
    val_share: float,
    seed: int,
    needs_proof: bool,
) -> WikiData:
    """Return the pages and the questions by split: a row's own split, or a draw by the question's
    text. Raises UserError for invalid data, with the row."""
    path = Path(os.path.expanduser(data))
    sources = [_Source(path, "env.data", needs_proof)]
    if test_data is not None:
        test_path = Path(os.path.expanduser(test_data))
        sources.append(_Source(test_path, "env.test_data", needs_proof))
    read = _read_folder if files.is_folder(path) else _read_paragraphs
    encyclopedia, (rows, *others) = read(sources)
    test_rows = list(chain(*others))
    shares = {"row": 0.0 if test_data else test_share, "val": val_share}
    for row in rows:
        draws = {name: derive_seed("wiki", name, seed, row["question"]) % 10**6 for name in shares}
        test, val = (draws[name] < share * 10**6 for name, share in shares.items())
        row.setdefault("split", "test" if test else "val" if val else "train")
    for row in test_rows:
        row["split"] = "test"
    not_val = {row["question"] for row in rows if row["split"] != "val"}
    rows = [row for row in rows if row["split"] != "val" or row["question"] not in not_val]
    tested = {row["question"] for row in test_rows}
    kept = [row for row in rows if row["question"] not in tested] + test_rows
    questions: dict[str, list[Row]] = {split: [] for split in SPLITS}
    articles: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for row in kept:
        (articles if row["kind"] == "article" else questions)[row.pop("split")].append(row)
    return WikiData("wiki-data", encyclopedia, questions, articles)


# --- Folders of pages ----------------------------------------------------------------------------


def _read_folder(sources: list[_Source]) -> tuple[Encyclopedia, list[list[Row]]]:
    folder = sources[0].file
    if not files.is_file(folder / QUESTIONS):
        line = f"'{folder}' has no {QUESTIONS}; write one with 'question' and 'answer' in each line"
        raise UserError(line, code="missing-questions")
    encyclopedia, titles = read_folder(folder)
    sources = [_Source(folder / QUESTIONS, "env.data", sources[0].needs_proof), *sources[1:]]
    rows = [
        [_own_row(source, n, row, encyclopedia, titles, f"{prefix}{n}")
         for n, row in _json_lines(source)]
        for source, prefix in zip(sources, "qt", strict=False)
    ]  # fmt: skip
    return encyclopedia, rows


def _own_row(
    source: _Source, number: int, row: Any, pages: Encyclopedia, titles: dict[str, str], name: str
) -> Row:
    try:
        if not isinstance(row, dict):
            raise ValueError("not an object")
        topic = clean(row["topic"]) if isinstance(row.get("topic"), str) else ""
        key = "lines" if topic else "evidence"
        lines = row.get(key) or []
        if not isinstance(lines, list):
            raise ValueError(f"'{key}' is not a list of lines")
        if topic:
            kind, question, answers = "article", f"Collect the lines about {topic}.", []
            if not lines:
                raise ValueError("no 'lines' of its topic")
        else:
            kind, question, answers = "question", _question(row), _answers(row)
        found: Row = {"id": name, "kind": kind, "question": question, "answers": answers}
        found["proof"] = [[_line(pair, pages, titles)] for pair in lines]
        if topic:
            found["topic"] = topic
        else:
            source.require_proof(lines, key)
        if row.get("split") is not None:
            if row["split"] not in SPLITS:
                raise ValueError(f"its split is {str(row['split'])[:40]!r}")
            found["split"] = row["split"]
    except ValueError as error:
        raise source.invalid_row(number, error) from None
    return found


def _line(pair: Any, pages: Encyclopedia, titles: dict[str, str]) -> list[Any]:
    """Resolve [title or path, number or words of the line] to [title, number]."""
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
        raise ValueError(f"'{title}' has lines 1 to {len(lines)}, not {str(wanted)[:20]}")
    return [title, wanted]


def read_folder(folder: Path) -> tuple[Encyclopedia, dict[str, str]]:
    """Return the pages of a folder, and their titles by path. Raises UserError for a folder without
    pages, a folder or page that is too large, and a page that is not text."""
    sizes = _page_sizes(folder)
    pages = {path: _read_page(folder, path) for path in sizes}
    counts = Counter(link_key(title) for title, _ in pages.values())
    titles, taken = dict[str, str](), set[str]()
    for path, (title, _) in pages.items():
        is_shared = counts[link_key(title)] > 1 or not title
        unique = f"{title} ({path[-TITLE_LENGTH:]})" if is_shared else title
        titles[path] = not_taken(unique, taken)
    by_title = {link_key(title): title for title in reversed(titles.values())}

    def resolver(source: str) -> Callable[[str, bool], str | None]:
        def resolve(link: str, by_name: bool) -> str | None:
            if by_name:
                return by_title.get(link_key(link))
            path = posixpath.join(posixpath.dirname(source), unquote(link.partition("#")[0]))
            path = posixpath.normpath(path)
            return next((titles[p] for s in ("", *SUFFIXES) if (p := path + s) in titles), None)

        return resolve

    return encyclopedia_of(
        page_of(titles[path], lines, resolver(path)) for path, (_, lines) in pages.items()
    ), titles


def _page_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each page by its path in the folder, sorted by path. Hidden files are
    skipped and links to folders are not followed."""
    found: dict[str, int] = {}
    waiting = [""]
    try:
        while waiting:  # without recursion, which os.walk needs in Python 3.11
            parent = waiting.pop()
            with os.scandir(folder / parent) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{parent}{entry.name}/")
                    elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                        if entry.is_symlink() and not files.is_inside(Path(entry.path), folder):
                            line = f"page '{entry.path}' is a link out of the folder"
                            raise UserError(f"{line}; copy it or take it out", code="outside-link")
                        found[f"{parent}{entry.name}"] = entry.stat().st_size
    except OSError as error:
        reason = error.strerror or str(error)
        line = f"'{error.filename}' cannot be read ({reason}); correct it"
        raise UserError(line, code="unreadable-page") from None
    if not found:
        line = f"'{folder}' holds no pages ({', '.join(SUFFIXES)}); name a folder with pages"
        raise UserError(line, code="no-pages")
    total, largest = sum(found.values()), max(found, key=lambda place: found[place])
    if len(found) > MAX_PAGES or total > MAX_FOLDER_BYTES:
        line = f"'{folder}' has {len(found)} pages and {total} bytes; at most {MAX_PAGES} pages and"
        line = f"{line} {MAX_FOLDER_BYTES} bytes can be read; name a smaller folder"
        raise UserError(line, code="too-large")
    if found[largest] > MAX_PAGE_BYTES:
        line = f"page '{largest}' of '{folder}' has {found[largest]} bytes; split it or take it"
        raise UserError(f"{line} out (at most {MAX_PAGE_BYTES})", code="too-large")
    return dict(sorted(found.items()))


def _read_page(folder: Path, path: str) -> tuple[str, list[str]]:
    name = f"page '{path}' of '{folder}'"
    try:
        content = (folder / path).read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        line = f"{name} cannot be read ({error.strerror or error}); correct it"
        raise UserError(line, code="unreadable-page") from None
    except UnicodeDecodeError as error:
        text, at = "\0", error.start
    else:
        at = content.find(b"\0")
    if "\0" in text:
        line = f"{name} is not UTF-8 text (byte {at}); convert it or take it out"
        raise UserError(line, code="not-text")
    lines = [line for row in WITHIN_LINES.sub(" ", text).splitlines() if (line := row.strip())]
    title = posixpath.splitext(posixpath.basename(path))[0].replace("_", " ").replace("-", " ")
    if not path.lower().endswith(".txt") and lines and HEADING.match(lines[0]):
        title = HEADING.sub("", lines.pop(0), count=1)
    lines = [HEADING.sub("", line, count=1) if line[0] == "#" else line for line in lines]
    return clean(title.translate(str.maketrans("[]", "()")))[:TITLE_LENGTH], lines


def page_of(title: str, lines: list[str], resolve: Callable[[str, bool], str | None]) -> Page:
    """Return a page as it is shown. `resolve` returns the title for a link's path or name."""
    links: dict[str, str | None] = {}

    def shown(found: re.Match[str]) -> str:
        text = found["name"] or found["wiki"] or found["text"] or found["target"] or ""
        is_page = found["wiki"] or not (found["image"] or EXTERNAL.match(found["target"]))
        if not is_page or not link_key(text):
            return text
        to = resolve(found["wiki"] or found["target"], bool(found["wiki"]))
        links.setdefault(link_key(text), to)
        return f"[{text}]"

    linked = (LINK.sub(shown, line) if "](" in line or "[[" in line else line for line in lines)
    return Page(title, "", tuple(chain.from_iterable(map(pieces, linked))) or EMPTY_PAGE, links)


def pieces(line: str) -> list[str]:
    """Cut a line into pieces of at most LINE_LENGTH characters, at spaces if there are any."""
    found = list[str]()
    while len(line) > LINE_LENGTH:
        cut = line.rfind(" ", 1, LINE_LENGTH + 1)
        cut = cut if cut > 0 else LINE_LENGTH
        found.append(line[:cut])
        line = line[cut:].lstrip()
    return [*found, line] if line else found


def clean(text: str) -> str:
    """Return text in one line without control characters and lone surrogates."""
    return " ".join(CONTROL.sub(" ", text).encode("utf-8", "replace").decode().split())


def not_taken(title: str, taken: set[str]) -> str:
    """Return the title, with a number if its key is in `taken`, and add its key to `taken`."""
    found, number = title, 2
    while link_key(found) in taken:
        found, number = f"{title} ({number})", number + 1
    taken.add(link_key(found))
    return found


# --- Files of HotpotQA and 2WikiMultiHopQA -------------------------------------------------------


def _read_paragraphs(sources: list[_Source]) -> tuple[Encyclopedia, list[list[Row]]]:
    paragraphs = Paragraphs()
    rows = [_paragraph_rows(s, paragraphs, p) for s, p in zip(sources, "qt", strict=False)]
    return paragraphs.encyclopedia(), rows


def _paragraph_rows(source: _Source, paragraphs: Paragraphs, prefix: str) -> list[Row]:
    found: list[Row] = []
    for number, row in _json_rows(source):
        try:
            if not isinstance(row, dict):
                raise ValueError("not an object")
            question, answers = _question(row), _answers(row)
            titles, facts = paragraphs.add(row), row.get("supporting_facts") or []
            source.require_proof(facts, "supporting_facts")
            proof = paragraphs.proof(row, titles) if facts else []
        except ValueError as error:
            raise source.invalid_row(number, error) from None
        if proof or not source.needs_proof:
            kind = clean(str(row.get("type") or "question")).replace("-", "_")[:40]
            found.append({"id": f"{prefix}{number}", "kind": kind, "question": question,
                          "answers": answers, "proof": proof})  # fmt: skip
    if not found:
        line = f"no question of '{source.file}' has a supporting fact within its paragraphs"
        line = f"{line}; use another file, or set env.reward=answer"
        raise UserError(line, code="no-tasks")
    return found


class Paragraphs:
    """The paragraphs of all questions. If two have the same title except for case and different
    sentences, the later title gets a number."""

    def __init__(self) -> None:
        self.titles: dict[tuple[str, Sentences], str] = {}
        self.taken: set[str] = set()
        self.neighbours: dict[str, dict[str, None]] = {}  # other paragraphs of the same questions
        self.lines: dict[str, list[list[int]]] = {}  # line numbers of each sentence, by title

    def add(self, row: dict[str, Any]) -> dict[str, str]:
        """Add the paragraphs of a question; return page titles by the row's titles. Raises
        ValueError for invalid paragraphs."""
        found: dict[str, str] = {}
        for title, sentences in _pairs(row.get("context"), "context", "sentences"):
            if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
                raise ValueError(f"the paragraph '{title[:40]}' is not a list of sentences")
            key = (clean(title), tuple(map(clean, sentences)))
            found.setdefault(title, self.titles.get(key) or self._add_page(key))
        for page in found.values():
            others = self.neighbours[page]
            if len(others) < MAX_LINKS:
                others |= {title: None for title in found.values() if title != page}
        return found

    def _add_page(self, key: tuple[str, Sentences]) -> str:
        title = not_taken(key[0][:TITLE_LENGTH] or "Untitled", self.taken)
        self.titles[key], self.neighbours[title], self.lines[title] = title, {}, []
        start = 1
        for count in (len(pieces(sentence)) for sentence in key[1]):
            self.lines[title].append([*range(start, start + count)])
            start += count
        return title

    def proof(self, row: dict[str, Any], titles: dict[str, str]) -> list[list[list[Any]]]:
        """Return the supporting facts as steps of a proof. Facts past the end of their paragraph,
        which the public files contain, are skipped. Raises ValueError for an invalid form."""
        steps = []
        for title, number in _pairs(row.get("supporting_facts"), "supporting_facts", "sent_id"):
            if not isinstance(number, int):
                raise ValueError(f"a supporting fact is {str([title, number])[:60]}")
            if title not in titles:
                raise ValueError(f"no paragraph is called '{title[:60]}', as a supporting fact is")
            page = titles[title]
            lines = self.lines[page][number : number + 1] if number >= 0 else []
            step = [[page, line] for line in lines[0]] if lines else []
            if step and step not in steps:
                steps.append(step)
        return steps

    def encyclopedia(self) -> Encyclopedia:
        return encyclopedia_of(
            _linked(title, sentences, self.neighbours[title])
            for (_, sentences), title in self.titles.items()
        )


def _linked(title: str, sentences: Sentences, others: Iterable[str]) -> Page:
    """Return a paragraph with links to the first mention of these other titles."""
    text, links = "\n".join(sentences), dict[str, str | None]()
    for other in sorted(others, key=len, reverse=True):
        if other in text:
            named = rf"(?<![\[\w]){re.escape(other)}(?![\]\w])"
            text, count = re.subn(named, lambda found: f"[{found[0]}]", text, count=1)
            if count:
                links[link_key(other)] = other
    lines = chain.from_iterable(map(pieces, text.split("\n")))
    return Page(title, "", tuple(lines) or EMPTY_PAGE, links)


def _pairs(value: Any, name: str, second: str) -> list[tuple[str, Any]]:
    """Return the pairs of [[title, …], …] or of {"title": […], SECOND: […]}."""
    if isinstance(value, dict):
        titles, others = value.get("title"), value.get(second)
        if isinstance(titles, list) and isinstance(others, list) and len(titles) == len(others):
            value = list(zip(titles, others, strict=True))
    if not isinstance(value, list) or not all(
        isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], str) for row in value
    ):
        raise ValueError(f"its '{name}' is not a list of pairs")
    return [(row[0], row[1]) for row in value]


# --- Rows ----------------------------------------------------------------------------------------


def _question(row: dict[str, Any]) -> str:
    value = row.get("question")
    if not isinstance(value, str) or not clean(value):
        raise ValueError("no 'question'")
    return clean(value)[:QUESTION_LENGTH]


def _answers(row: dict[str, Any]) -> list[str]:
    """Return the answer, a text or a number, or the list of its forms."""
    value = row.get("answer")
    values = value if isinstance(value, list) else [value]
    texts = [clean(str(value)) for value in values if _is_answer(value)]
    if not texts or len(texts) < len(values):
        raise ValueError("no 'answer'")
    if (longest := max(map(len, texts))) > MAX_ARGUMENT:
        raise ValueError(f"its answer has {longest} characters, and SUBMIT takes {MAX_ARGUMENT}")
    return texts


def _is_answer(value: Any) -> bool:
    if isinstance(value, str):
        return bool(clean(value))
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _json_rows(source: _Source) -> Iterable[tuple[int, Any]]:
    if source.file.suffix.lower() == ".jsonl":
        return _json_lines(source)
    try:
        value = json.loads(_content(source))
    except (ValueError, RecursionError) as error:
        line = f"'{source.file}' is not JSON ({error}); give a list of questions"
        raise UserError(line, code="invalid-json") from None
    if not isinstance(value, list) or not value:
        line = f"'{source.file}' is not a list of questions; use the form of HotpotQA's files"
        raise UserError(line, code="no-questions")
    return enumerate(value, start=1)


def _json_lines(source: _Source) -> list[tuple[int, Any]]:
    rows: list[tuple[int, Any]] = []
    for number, line in enumerate(_content(source).splitlines(), start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise source.invalid_row(number, "not JSON") from None
    if not rows:
        line = f"'{source.file}' holds no question; write one JSON object a line"
        raise UserError(line, code="no-questions")
    return rows


def _content(source: _Source) -> bytes:
    file = source.file
    remedy = "give a .json or .jsonl file of questions"
    if source.key == "env.data":
        remedy += f", or a folder of pages with {QUESTIONS}"
    try:
        if file.suffix.lower() not in (".json", ".jsonl"):
            raise UserError(f"{source.key} '{file}' cannot be used; {remedy}", code="wrong-file")
        if file.stat().st_size > MAX_QUESTION_BYTES:
            line = f"'{file}' has more than {MAX_QUESTION_BYTES} bytes; use a part of it"
            raise UserError(line, code="too-large")
        return file.read_bytes()
    except OSError as error:
        line = f"{source.key} '{file}' cannot be read ({error.strerror}); {remedy}"
        raise UserError(line, code="unreadable-file") from None
