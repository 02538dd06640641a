"""Build the documentation site from README.md, docs/ and the code.

Run `make docs`, or `python tools/docs_site.py FOLDER`. The pages are those of the repository; other
files that they link to are copied. Notebooks are shown with their stored outputs and not run. The
start page of each part, the settings and the Python API are generated. Sphinx (docs/conf.py) fails
on any warning, such as a link that leads nowhere or a page that no part lists.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl_cli.config import comments
from agentrl_cli.config.compose import groups, options
from agentrl_cli.config.settings import Settings
from agentrl_cli.config.validation import PUBLIC, field_type

ROOT = Path(__file__).parents[1]
DOCS, CONF = ROOT / "docs", ROOT / "conf"
PARTS = {  # of the navigation: title, what it is for, and its pages
    "tutorials": ("Tutorials", "Train, evaluate and extend, step by step.",
                  "usage python extending notebooks/train notebooks/extend notebooks/critic"),
    "howto": ("How-to guides", "Reach a goal or solve a problem.",
              "real_models scaling pitfalls CONTRIBUTING"),
    "reference": ("Reference", "Look up a key, a class, a metric, a formula or a guarantee.",
                  "settings api metrics algorithms wiki tiny_models notation reliability SECURITY "
                  "CHANGELOG"),
    "explanation": ("Explanation", "What was found, how sure it is, and what was tried.",
                    "findings results performance log/README"),
}  # fmt: skip
PAGES = {  # name on the site and file
    "index": ROOT / "README.md",
    "tiny_models": ROOT / "agentrl_cli" / "models" / "tiny" / "README.md",
    **{name: ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")},
    **{
        str(file.relative_to(DOCS).with_suffix("")): file
        for shape in ("*.md", "notebooks/*.ipynb")
        for file in DOCS.rglob(shape)
    },
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
ABOUT_SETTINGS = """\
Every key of the configuration with its type, default and meaning. `agentrl config OVERRIDES` prints
the same for a choice of options. A group is a choice between options: `algo=grpo` takes the section
`grpo` of [algo](settings/algo.md). A key is set by its name, such as `algo.group_size=8`."""
NEEDED = {"hf": ["model.path=NAME"]}  # overrides that an option needs
LONGEST = 100  # characters of a value in a table


def main(folder: Path) -> int:
    """Write the site to a folder. Returns the exit status of Sphinx."""
    if folder.exists():
        if not (folder / ".buildinfo").is_file():  # which Sphinx writes
            raise SystemExit(f"'{folder}' exists and is not a site; name another folder")
        shutil.rmtree(folder)
    with TemporaryDirectory() as name:
        source = Path(name)
        pages = {**copied_pages(source), **settings_pages(), "api": api_page()}
        for page, text in {**pages, **part_pages(pages)}.items():
            file = source / file_name(page)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet"]
        places = ["-c", DOCS, "-d", source / ".doctrees", source, folder]
        return subprocess.run([*sphinx, *places], check=False).returncode


# pages of the repository


def copied_pages(source: Path) -> dict[str, str]:
    """Return the pages of the repository with links for the site, and copy the files they show."""
    names = {file: name for name, file in PAGES.items()}
    shutil.copytree(DOCS / "images", source / "images")

    def page(name: str, file: Path) -> str:
        def link(found: re.Match[str]) -> str:
            image, text, target, anchor = found.groups(default="")
            to = (file.parent / target).resolve()
            if to.is_dir():
                return text
            place = file_name(names[to]) if to in names else str(to.relative_to(ROOT))
            place = place.removeprefix("docs/")
            if to.is_file() and to not in names:
                (source / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(to, source / place)
            text = "" if text.endswith(".md") else text  # Sphinx inserts the title
            return f"{image}[{text}]({os.path.relpath(place, Path(name).parent)}{anchor})"

        return LINK.sub(link, file.read_text())  # of a notebook: in the JSON of its texts

    found = {name: page(name, file) for name, file in PAGES.items()}
    found["index"] += toctree(PARTS)
    found["log/README"] += toctree(sorted(n[4:] for n in PAGES if re.match(r"log/\d", n)))
    return found


def file_name(page: str) -> str:
    is_notebook = PAGES.get(page, ROOT).suffix == ".ipynb"
    return f"{page}.ipynb" if is_notebook else f"{page}.md"


def part_pages(pages: dict[str, str]) -> dict[str, str]:
    """Return the start page of each part: its pages, each with its first sentence."""
    found = {}
    for part, (title, about, listed) in PARTS.items():
        names = [name for name in listed.split() if name in pages]
        lines = [f"# {title}", "", about, ""]
        for name in names:
            text = pages[name]
            if file_name(name).endswith(".ipynb"):
                text = "".join(json.loads(text)["cells"][0]["source"])
            heading = re.search(r"^# (.+)$", text, re.MULTILINE)
            first = re.search(r"^[A-Z`].*?\.(?=\s)", text, re.MULTILINE | re.DOTALL)
            assert heading and first, name
            lines.append(f"- [{heading[1]}]({file_name(name)}): {' '.join(first[0].split())}")
        found[part] = "\n".join(lines) + "\n" + toctree(names)
    return found


def toctree(names: Iterable[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])


# settings


def settings_pages() -> dict[str, str]:
    """Return the page of the root and those of the groups. A group that is a node of the
    configuration has a table for each option, another one, such as recipe, its YAML."""
    known = {group: found for group in groups() if (found := options(group))}
    rows = [row for row in comments.settings([])[0] if row["source"] == "config.yaml"]
    links = [f"- [{group}](settings/{group}.md): {', '.join(known[group])}" for group in known]
    index = ["# Settings", "", ABOUT_SETTINGS, "", *links, "", "## Root", "", *table(rows)]
    found = {"settings": "\n".join(index) + toctree(f"settings/{group}" for group in known)}
    nodes = {field.name for field in fields(Settings)}
    for group, about in known.items():
        lines = [f"# {group}", "", f"The options of `{group}=NAME` and their values.", ""]
        for option, text in about.items():
            lines += [f"## {option}", "", escaped(text), ""]
            yaml = option_text(group, option)
            if group not in nodes:
                lines += ["```yaml", yaml, "```", ""]
            if group in nodes or "_target_" in yaml:
                overrides = [f"{group}={option}", *NEEDED.get(option, [])]
                lines += table(comments.settings(overrides)[0], group)
        found[f"settings/{group}"] = "\n".join(lines)
    return found


def option_text(group: str, option: str) -> str:
    """Return the YAML of an option without the comment that describes it."""
    if (file := CONF / group / f"{option}.yaml").is_file():
        return "\n".join(line for line in file.read_text().splitlines() if line[:1] != "#")
    sections = (CONF / f"{group}.yaml").read_text()
    found = re.findall(rf"^{option}:.*\n((?:(?: .*)?\n)*)", sections, re.MULTILINE)
    return textwrap.dedent(found[0]).rstrip()


def table(rows: list[comments.Row], group: str = "config") -> list[str]:
    """Return a table of the rows that a group sets, or nothing if it sets none."""
    node: dict[str, Any] = {}
    for row in rows:
        *path, name = row["key"].split(".")
        inner = node
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = row["value"]
    own = [row for row in rows if row["source"].startswith((f"{group}/", f"{group}.yaml"))]
    lines = [
        f"| `{row['key']}` | {kind(field_type(Settings, node, row['key'].split('.')))} "
        f"| {value(row['value'])} | {escaped(row['comment'])} |"
        for row in own
        if not row["key"].endswith("_target_")
    ]
    header = ["{.settings}", "| key | type | default | meaning |", "|---|---|---|---|"]
    return [*header, *lines, ""] if lines else []


def value(found: Any) -> str:
    if found == "???":
        return "required"
    text = comments.shown(found)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"`{text.replace('|', chr(92) + '|')}`"


def kind(found: Any) -> str:
    """Return a declared type in words, such as `int ≥ 1`."""
    origin, parts = typing.get_origin(found), typing.get_args(found)
    if origin is typing.Annotated:
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        limits = [m for field in parts[1:] for m in getattr(field, "metadata", [])]
        texts = [f"{signs[n]} {getattr(m, n)}" for m in limits for n in signs if hasattr(m, n)]
        return " ".join([kind(parts[0]), ", ".join(texts)]).strip()
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(kind, parts))
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is not None:
        return f"{origin.__name__} of {', '.join(kind(p) for p in parts if p is not ...)}"
    if is_dataclass(found):
        return "section"
    return {None: "", Any: "any", type(None): "null"}.get(found) or getattr(found, "__name__", "")


def escaped(text: str) -> str:
    """Return a text with the marks of Markdown escaped outside of code."""
    return re.sub(r"(`[^`]*`)|([|<*\[\]])", lambda m: m[1] or f"\\{m[2]}", text)


# Python


def api_page() -> str:
    """Return the page of the public names, which Sphinx fills from their docstrings."""
    lines = ["# Python API", "", "The public functions and classes; all else may change.", ""]
    described: set[Any] = set()
    for package in ["agentrl_cli", *(f"agentrl_cli.{name}" for name in PUBLIC)]:
        module = importlib.import_module(package)
        names = [n for n in getattr(module, "__all__", []) if not n.startswith("_")]
        names = [n for n in names if package == "agentrl_cli" or not n.endswith("Config")]
        names = [n for n in names if getattr(module, n) not in described]
        described.update(getattr(module, n) for n in names)
        if names:
            lines += [f"## {package}", "", "```{eval-rst}"]
            for name in names:
                what = "class" if inspect.isclass(getattr(module, name)) else "function"
                lines.append(f".. auto{what}:: {package}.{name}")
            lines += ["```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
