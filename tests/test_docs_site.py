"""The documentation site: strict build, complete settings, links, two widths, search."""

from __future__ import annotations

import html
import importlib
import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from agentrl_cli.config.settings import Settings
from agentrl_cli.config.validation import public_names
from tests.builders.browser import CHROMIUM, MISSING, browse
from tests.paths import ROOT

pytest.importorskip("pydata_sphinx_theme", reason="the site needs Sphinx (extra: docs)")
pytestmark = [pytest.mark.slow, pytest.mark.extras]
TARGET = re.compile(r'<(?:a|img|link|script)\b[^>]*?\s(?:href|src)="([^"]*)"')
LOADED = re.compile(r'<(?:img|script|link rel="stylesheet")[^>]*?\s(?:href|src)="([^"]*)"')
KEY = re.compile(r'<tr[^>]*><td><p><code[^>]*><span class="pre">([\w.]+)</span>')
MEASURE = """
const pages = ["index", "api", "metrics", "results", "settings/algo", "scaling"];
pages.push("notebooks/extend");
const found = {};
async function open(page, width) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {src: page, width, height: 900});
  await new Promise((loaded) => { frame.onload = loaded; document.body.append(frame); });
  return frame.contentDocument;
}
async function measure() {
  for (const width of [1280, 400]) for (const page of pages) {
    const opened = await open(`${page}.html`, width);
    const inside = opened.querySelectorAll("article *:not(:is(table, pre) *, table)");
    const edge = Math.max(...[...inside].map((e) => e.getBoundingClientRect().right));
    const boxes = [...opened.querySelectorAll(".pst-scrollable-table-container")];
    const scrolls = boxes.some((box) => box.scrollWidth > box.clientWidth);
    found[`${page} ${width}`] = [Math.round(edge), scrolls];
  }
  const opened = await open("search.html?q=group_size", 1280);
  while (!opened.querySelector("#search-results li a")) await new Promise((r) => setTimeout(r, 50));
  found.search = opened.querySelector("#search-results li a").getAttribute("href");
  document.title = JSON.stringify(found);
}
measure();
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run([sys.executable, "tools/docs_site.py", str(folder)], cwd=ROOT, check=True)
    return folder


def test_every_link_of_the_site_leads_somewhere_in_it(site: Path):
    files = {*site.rglob("*.html")} - {*site.glob("_static/**/*.html")}
    pages = {file: file.read_text() for file in files}
    anchors = {file: set(re.findall(r'\bid="([^"]+)"', text)) for file, text in pages.items()}
    for page, text in pages.items():
        assert [link for link in LOADED.findall(text) if "://" in link] == []  # works offline
        links = [html.unescape(link) for link in TARGET.findall(text) if "://" not in link]
        for link in links:
            name, _, anchor = link.partition("#")
            file = (page.parent / unquote(name.partition("?")[0])).resolve() if name else page
            assert file.is_file(), f"{page.name}: {link}"
            if anchor and file in anchors:
                assert unquote(anchor) in anchors[file], f"{page.name}: {link}"
    assert len(pages) > 30


def test_every_setting_is_on_the_site(site: Path):
    pages = [site / "settings.html", *(site / "settings").glob("*.html")]
    keys = KEY.findall("\n".join(page.read_text() for page in pages))
    listed = {part for key in keys for part in key.split(".")}
    named = [name.rpartition(".") for name in public_names()]
    found = [getattr(importlib.import_module(module), name) for module, _, name in named]
    classes = [c for c in found if c.__name__.endswith("Config") or ".envs." in c.__module__]
    classes = [Settings, *filter(is_dataclass, classes)]
    names = {field.name for cls in classes for field in fields(cls) if field.init}
    assert len(names) > 120 and names - listed == {"choices"}  # which Hydra fills


@pytest.mark.parametrize(
    ("text", "status"),
    [("[b](b.md#b)", 0), ("[b](missing.md)", 1), ("[b](b.md#missing)", 1), ("[b](b.json)", 1)],
)
def test_link_that_leads_nowhere_fails_the_build(text: str, status: int, tmp_path: Path):
    (tmp_path / "index.md").write_text(f"# A\n\n{text}\n\n```{{toctree}}\nb\n```\n")
    (tmp_path / "b.md").write_text("# B\n")
    command = [sys.executable, "-m", "sphinx", "-W", "--quiet", "-c", "docs", "-b", "dummy"]
    done = subprocess.run([*command, str(tmp_path), str(tmp_path / "out")], cwd=ROOT)
    assert done.returncode == status


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_pages_fit_two_widths_and_search_finds_a_key(site: Path, tmp_path: Path):
    page = site / "measure.html"
    page.write_text(f"<title></title><body><script>{MEASURE}</script></body>")
    flags = ("--allow-file-access-from-files", "--virtual-time-budget=60000", "--dump-dom")
    title = re.search(r"<title>(.+?)</title>", browse(page, tmp_path, *flags).stdout)
    assert title is not None
    found = json.loads(html.unescape(title[1]))
    assert found.pop("search").partition("?")[0] == "settings/algo.html"
    edges = {name: edge for name, (edge, _) in found.items()}
    assert {n: edge for n, edge in edges.items() if edge > int(n.split()[1])} == {}
    assert len(edges) == 14 and found["results 400"][1] and not found["settings/algo 1280"][1]
