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
from functools import lru_cache, partial
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
Parser = Callable[[dict[str, Any], bool], Row]  # a row and whether it needs a proof to a task


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
    test = [] if test_data is None else [("env.test_data", Path(os.path.expanduser(test_data)))]
    if files.is_folder(path):
        encyclopedia, titles = read_folder(path)
        parse = partial(_own_row, encyclopedia, titles)
        rows, *others = _rows([("env.data", path / QUESTIONS), *test], parse, needs_proof, True)
    else:
        paragraphs = Paragraphs()
        rows, *others = _rows([("env.data", path), *test], paragraphs.row, needs_proof, False)
        encyclopedia = paragraphs.encyclopedia()
    shares = {"row": 0.0 if test_data else test_share, "val": val_share}
    for row in rows:
        draws = {name: derive_seed("wiki", name, seed, row["question"]) % 10**6 for name in shares}
        is_test, is_val = (draws[name] < share * 10**6 for name, share in shares.items())
        row.setdefault("split", "test" if is_test else "val" if is_val else "train")
    test_rows = [row | {"split": "test"} for row in chain(*others)]
    not_val = {row["question"] for row in rows if row["split"] != "val"}
    asked = {row["question"] for row in test_rows}
    tested = asked | {row["question"] for row in rows if row["split"] == "test"}
    questions: dict[str, list[Row]] = {split: [] for split in SPLITS}
    articles: dict[str, list[Row]] = {split: [] for split in SPLITS}
    own = [row for row in rows if row["question"] not in asked]
    own = [row for row in own if row["split"] == "test" or row["question"] not in tested]
    for row in own + test_rows:
        split = row.pop("split")
        if split != "val" or row["question"] not in not_val:
            (articles if row["kind"] == "article" else questions)[split].append(row)
    return WikiData("wiki-data", encyclopedia, questions, articles)


# --- Rows of a file of questions ------------------------------------------------------------------


def _rows(
    sources: list[tuple[str, Path]], parse: Parser, needs_proof: bool, is_folder: bool
) -> list[list[Row]]:
    """Return the tasks of each file, which is the value of a setting. Rows whose proof has no valid
    line are left out if they need one."""
    found: list[list[Row]] = []
    for prefix, (key, file) in zip("qt", sources, strict=False):
        content, rows = _content(key, file), []
        is_lines = is_folder or file.suffix.lower() == ".jsonl"
        for number, raw in enumerate(
            content.splitlines() if is_lines else _values(file, content), 1
        ):
            if is_lines and not raw.strip():
                continue
            try:
                row = json.loads(raw) if is_lines else raw
                if not isinstance(row, dict):
                    raise ValueError("not an object")
                task = {"id": f"{prefix}{number}"} | parse(row, needs_proof)
            except (ValueError, RecursionError, OverflowError) as error:
                line = f"row {number} of '{file}' is not a question ({error})"
                raise UserError(f"{line}; correct or delete it", code="invalid-row") from None
            rows.append(task)
        if not rows:
            line = f"'{file}' holds no question; write a JSON list, or one JSON object a line"
            raise UserError(line, code="no-questions")
        found.append([row for row in rows if row["proof"] or not needs_proof])
        if not found[-1]:
            line = f"no question of '{file}' has a supporting fact within its paragraphs"
            line = f"{line}; use another file, or set env.reward=answer"
            raise UserError(line, code="no-tasks")
    return found


def _content(key: str, file: Path) -> bytes:
    remedy = "give a .json or .jsonl file of questions"
    if key == "env.data":
        remedy += f", or a folder of pages with {QUESTIONS}"
    try:
        if file.suffix.lower() not in (".json", ".jsonl"):
            raise UserError(f"{key} '{file}' cannot be used; {remedy}", code="wrong-file")
        if file.stat().st_size > MAX_QUESTION_BYTES:
            line = f"'{file}' has more than {MAX_QUESTION_BYTES} bytes; use a part of it"
            raise UserError(line, code="too-large")
        return file.read_bytes()
    except OSError as error:
        line = f"{key} '{file}' cannot be read ({error.strerror}); {remedy}"
        raise UserError(line, code="unreadable-file") from None


def _values(file: Path, content: bytes) -> list[Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        line = f"'{file}' is not JSON ({error}); give a list of questions"
        raise UserError(line, code="invalid-json") from None
    return value if isinstance(value, list) else []


def _question_row(row: dict[str, Any], proof: list[Any], key: str, needs_proof: bool) -> Row:
    """Return a question with the parts that all forms share. Raises ValueError if one is invalid or
    if a proof is needed and `key`, which names it, is empty."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not clean(question):
        raise ValueError("no 'question'")
    values = answer if isinstance(answer, list) else [answer]
    answers = [
        clean(str(value))
        for value in values
        if isinstance(value, str)
        or (
            isinstance(value, int | float)
            and value is not True
            and value is not False
            and math.isfinite(value)
        )
    ]
    if not all(answers) or not values or len(answers) < len(values):
        raise ValueError("no 'answer'")
    if (longest := max(map(len, answers))) > MAX_ARGUMENT:
        raise ValueError(f"its answer has {longest} characters, and SUBMIT takes {MAX_ARGUMENT}")
    if needs_proof and not row.get(key):
        raise ValueError(f"no '{key}', which env.reward=both and evidence need; or use answer")
    kind = clean(str(row.get("type") or "question")).replace("-", "_")[:40]
    return {"kind": kind, "question": clean(question)[:QUESTION_LENGTH], "answers": answers,
            "proof": proof}  # fmt: skip


# --- Folders of pages ----------------------------------------------------------------------------


def _own_row(
    pages: Encyclopedia, titles: dict[str, str], row: dict[str, Any], needs_proof: bool
) -> Row:
    topic = clean(row["topic"]) if isinstance(row.get("topic"), str) else ""
    key = "lines" if topic else "evidence"
    lines = row.get(key) or []
    if not isinstance(lines, list):
        raise ValueError(f"'{key}' is not a list of lines")
    proof = [[_line(pair, pages, titles)] for pair in lines]
    if topic and not proof:
        raise ValueError("no 'lines' of its topic")
    if topic:
        found: Row = {"kind": "article", "question": f"Collect the lines about {topic}.",
                      "answers": [], "proof": proof, "topic": topic}  # fmt: skip
    else:
        found = _question_row(row | {"type": ""}, proof, key, needs_proof)
    if row.get("split") is not None:
        if row["split"] not in SPLITS:
            raise ValueError(f"its split is {str(row['split'])[:40]!r}")
        found["split"] = row["split"]
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
    try:
        pages = {path: _read_page(folder, path) for path in _page_paths(folder)}
    except OSError as error:
        line = f"'{error.filename}' cannot be read ({error.strerror or error}); correct it"
        raise UserError(line, code="unreadable-page") from None
    counts = Counter(link_key(title) for title, _ in pages.values())
    titles, taken = dict[str, str](), set[str]()
    for path, (title, _) in pages.items():
        is_shared = counts[link_key(title)] > 1 or not title
        unique = f"{title} ({path[-TITLE_LENGTH:]})" if is_shared else title
        titles[path] = not_taken(unique, taken)
    by_title = {link_key(title): title for title in reversed(titles.values())}

    def resolve(source: str, link: str, by_name: bool) -> str | None:
        if by_name:
            return by_title.get(link_key(link))
        path = posixpath.join(posixpath.dirname(source), unquote(link.partition("#")[0]))
        path = posixpath.normpath(path)
        return next((titles[p] for s in ("", *SUFFIXES) if (p := path + s) in titles), None)

    return encyclopedia_of(
        page_of(titles[path], lines, partial(resolve, path)) for path, (_, lines) in pages.items()
    ), titles


def _page_paths(folder: Path) -> list[str]:
    """Return the paths of all pages in the folder, sorted. Hidden files are skipped and links to
    folders are not followed."""
    sizes: dict[str, int] = {}
    waiting = [""]
    for parent in waiting:  # grows inside; os.walk is recursive in Python 3.11
        for entry in os.scandir(folder / parent):
            path = f"{parent}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            elif path.lower().endswith(SUFFIXES) and entry.is_file():
                if entry.is_symlink() and not files.is_inside(folder / path, folder):
                    line = f"page '{entry.path}' is a link out of the folder"
                    raise UserError(f"{line}; copy it or take it out", code="outside-link")
                sizes[path] = entry.stat().st_size
    if not sizes:
        line = f"'{folder}' holds no pages ({', '.join(SUFFIXES)}); name a folder with pages"
        raise UserError(line, code="no-pages")
    total, largest = sum(sizes.values()), max(sizes, key=lambda path: sizes[path])
    limits = (MAX_PAGES, MAX_FOLDER_BYTES, MAX_PAGE_BYTES)
    if any(n > limit for n, limit in zip((len(sizes), total, sizes[largest]), limits, strict=True)):
        raise UserError(
            f"'{folder}' has {len(sizes)} pages and {total} bytes, {sizes[largest]} of them in "
            f"'{largest}'; take pages out, or split them (at most {MAX_PAGES} pages, "
            f"{MAX_FOLDER_BYTES} bytes, and {MAX_PAGE_BYTES} bytes in one)",
            code="too-large",
        )
    return sorted(sizes)


def _read_page(folder: Path, path: str) -> tuple[str, list[str]]:
    try:
        text = (folder / path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        line = f"page '{path}' of '{folder}' is not UTF-8 text; convert it or take it out"
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


class Paragraphs:
    """The paragraphs of all questions. If two have the same title except for case and different
    sentences, the later title gets a number."""

    def __init__(self) -> None:
        self.titles: dict[tuple[str, Sentences], str] = {}
        self.taken: set[str] = set()
        self.neighbours: dict[str, dict[str, None]] = {}  # other paragraphs of the same questions
        self.lines: dict[str, list[list[int]]] = {}  # line numbers of each sentence, by title

    def row(self, row: dict[str, Any], needs_proof: bool) -> Row:
        """Add the paragraphs of a question and return it. Facts past the end of their paragraph,
        which the public files contain, are skipped. Raises ValueError for an invalid form."""
        titles, proof = self._add(row), []
        facts = row.get("supporting_facts") or []
        for title, number in _pairs(facts, "supporting_facts", "sent_id"):
            if not isinstance(number, int):
                raise ValueError(f"a supporting fact is {str([title, number])[:60]}")
            if title not in titles:
                raise ValueError(f"no paragraph is called '{title[:60]}', as a supporting fact is")
            page = titles[title]
            lines = self.lines[page][number : number + 1] if number >= 0 else []
            step = [[page, line] for line in lines[0]] if lines else []
            if step and step not in proof:
                proof.append(step)
        return _question_row(row, proof, "supporting_facts", needs_proof)

    def _add(self, row: dict[str, Any]) -> dict[str, str]:
        """Add the paragraphs of a question; return page titles by the row's titles."""
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
