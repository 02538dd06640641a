"""A user's folder of pages: Markdown and plain text, read once and never written to.

Every line that says something is a numbered line; long ones are cut at spaces. Links lead to pages
of the folder alone: what climbs out of it, or to a page that is not there, is a dead link.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import is_inside
from agentrl_cli.envs.wiki.pages import Encyclopedia, Page, encyclopedia_of, link_key

SUFFIXES = (".md", ".markdown", ".txt")
MOST_PAGES, MOST_BYTES, MOST_BYTES_IN_ALL = 100_000, 2**20, 2**29
LINE_LENGTH, TITLE_LENGTH = 400, 100  # characters that are shown of a line, and of a title
WITHIN_LINES = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
HEADING = re.compile(r"#{1,6}\s+")
LINK = re.compile(
    r"\[\[(?P<wiki>[^\[\]|\n]{1,200})(?:\|(?P<name>[^\[\]\n]{1,200}))?\]\]"
    r"|(?P<image>!?)\[(?P<text>[^\[\]\n]{0,200})\]\((?P<target>[^()\s]{0,300})(?:\s+\"[^\"\n]{0,200}\")?\)"
)
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|#")  # how links begin that lead to no page


@dataclass(frozen=True)
class _File:
    """A page's place in the folder, its title, and its lines as they were written."""

    place: str
    title: str
    lines: list[str]


def read_folder(folder: Path) -> tuple[Encyclopedia, dict[str, str]]:
    """The pages of a folder, and their titles by place. Raises UserError for a folder without
    pages, one that is too large, and a page that is no text."""
    files = [_read(folder, place) for place in _places(folder)]
    titles = _titles(files)
    by_title = {link_key(title): title for title in reversed(titles.values())}

    def lead(place: str) -> Callable[[str, bool], str | None]:
        """Where links of a page lead: a title, or None."""

        def target(link: str, by_name: bool) -> str | None:
            if by_name:
                return by_title.get(link_key(link))
            path = posixpath.join(posixpath.dirname(place), unquote(link.partition("#")[0]))
            path = posixpath.normpath(path)
            return next((titles[p] for s in ("", *SUFFIXES) if (p := path + s) in titles), None)

        return target

    pages = (page_of(titles[f.place], f.lines, lead(f.place)) for f in files)
    return encyclopedia_of(pages), titles


def page_of(title: str, lines: list[str], target: Callable[[str, bool], str | None]) -> Page:
    """A page as it is shown. `target` says where a link leads, by its path or by its name."""
    links: dict[str, str | None] = {}

    def shown(found: re.Match[str]) -> str:
        text = found["name"] or found["wiki"] or found["text"] or found["target"] or ""
        is_page = found["wiki"] or not (found["image"] or ELSEWHERE.match(found["target"]))
        if not is_page or not link_key(text):
            return text
        to = target(found["wiki"] or found["target"], bool(found["wiki"]))
        links.setdefault(link_key(text), to)
        return f"[{text}]"

    linked = (LINK.sub(shown, line) if "](" in line or "[[" in line else line for line in lines)
    kept = [piece for line in linked for piece in pieces(line)]
    return Page(title, "", tuple(kept) or ("This page is empty.",), links)


def pieces(line: str) -> list[str]:
    """A line in pieces of at most LINE_LENGTH characters, cut at spaces where there are any."""
    found = list[str]()
    while len(line) > LINE_LENGTH:
        cut = line.rfind(" ", 1, LINE_LENGTH + 1)
        cut = cut if cut > 0 else LINE_LENGTH
        found.append(line[:cut])
        line = line[cut:].lstrip()
    return [*found, line] if line else found


def clean(text: str) -> str:
    """Text without control characters and lone surrogates, in one line."""
    return " ".join(CONTROL.sub(" ", text).encode("utf-8", "replace").decode().split())


def _places(folder: Path) -> list[str]:
    """The places of all pages in the folder, in order."""
    try:
        sizes = dict(sorted(_walk(folder)))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"'{error.filename}' cannot be read ({reason}); mend it") from None
    if not sizes:
        kinds = ", ".join(SUFFIXES)
        raise UserError(f"'{folder}' holds no pages ({kinds}); name a folder that does")
    if len(sizes) > MOST_PAGES:
        line = f"'{folder}' holds {len(sizes)} pages, and {MOST_PAGES} can be read"
        raise UserError(f"{line}; name a smaller folder")
    if sum(sizes.values()) > MOST_BYTES_IN_ALL:
        line = f"the pages of '{folder}' have {sum(sizes.values())} bytes"
        raise UserError(f"{line}, and {MOST_BYTES_IN_ALL} can be read; name a smaller folder")
    for place, size in sizes.items():
        if size > MOST_BYTES:
            line = f"page '{place}' of '{folder}' has {size} bytes"
            raise UserError(f"{line}, and a page may have {MOST_BYTES}; split it or take it out")
    return list(sizes)


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    """Places of pages and their bytes; what begins with a dot is left out, and links to other
    folders are not followed. UserError for a page that is a link out of the folder."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{below}{entry.name}/")
                elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                    if entry.is_symlink() and not is_inside(Path(entry.path), folder):
                        line = f"page '{entry.path}' is a link out of the folder"
                        raise UserError(f"{line}; copy it or take it out")
                    yield f"{below}{entry.name}", entry.stat().st_size


def _read(folder: Path, place: str) -> _File:
    try:
        content = (folder / place).read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"page '{place}' of '{folder}' cannot be read ({reason})") from None
    except UnicodeDecodeError as error:
        raise _no_text(folder, place, error.start) from None
    if "\0" in text:
        raise _no_text(folder, place, content.index(b"\0"))
    lines = [line for row in WITHIN_LINES.sub(" ", text).splitlines() if (line := row.strip())]
    title = posixpath.splitext(posixpath.basename(place))[0].replace("_", " ").replace("-", " ")
    if not place.lower().endswith(".txt") and lines and HEADING.match(lines[0]):
        title = HEADING.sub("", lines.pop(0), count=1)
    lines = [HEADING.sub("", line, count=1) if line[0] == "#" else line for line in lines]
    return _File(place, clean(title.translate(str.maketrans("[]", "()")))[:TITLE_LENGTH], lines)


def _titles(files: list[_File]) -> dict[str, str]:
    """The title of each page by its place: with the end of the place where others have the same but
    for case, and with a number where that does not tell them apart."""
    counts = Counter(link_key(file.title) for file in files)
    titles, taken = dict[str, str](), set[str]()
    for file in files:
        is_shared = counts[link_key(file.title)] > 1 or not file.title
        title = f"{file.title} ({file.place[-TITLE_LENGTH:]})" if is_shared else file.title
        titles[file.place] = not_taken(title, taken)
    return titles


def not_taken(title: str, taken: set[str]) -> str:
    """The title, or the same with a number behind it that no link in `taken` leads to; it is taken
    from now on."""
    found, number = title, 2
    while link_key(found) in taken:
        found, number = f"{title} ({number})", number + 1
    taken.add(link_key(found))
    return found


def _no_text(folder: Path, place: str, byte: int) -> UserError:
    line = f"page '{place}' of '{folder}' is no text in UTF-8 (byte {byte})"
    return UserError(f"{line}; convert it or take it out")
