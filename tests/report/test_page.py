"""The HTML report: hostile texts stay texts, links lead somewhere, all episodes are shown."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import numpy as np
import pytest

from agentrl_cli.core.errors import UserError
from agentrl_cli.report import figures, page
from agentrl_cli.report.compare import gather
from agentrl_cli.report.page import FIGURES, FILE, choose_examples, folder_for, pack, write
from agentrl_cli.runs import episode_files
from agentrl_cli.runs.episode_files import EpisodeEntry
from agentrl_cli.runs.find import find_run
from tests.builders.errors import user_error
from tests.builders.report import BASE, Page, episodes, write_run

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e&lt;b"
EPISODES = [f"t-{task}-e{n:02d}" for task in ("cat", "dog", "owl", "elk") for n in (0, 1)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder / f"grpo-{seed}", seed=seed, final=BASE, text=HOSTILE)
        said = {"critic": {"forecasts": [HOSTILE + " Success."], "critique": HOSTILE}}
        write_run(folder / f"nlac-{seed}", algo="nlac", seed=seed, said=said)
    return write(gather([str(folder)]), folder_for([str(folder)]), pages=True).parent


def written(folder: Path, *runs: Path, **options: bool) -> str:
    return write(gather([str(run) for run in runs]), folder, **options).read_text()


def test_hostile_texts_are_escaped(made: Path):
    pages = [made / FILE, *(made / "pages").iterdir()]
    assert len(pages) == 5
    for found in map(Page, texts := [file.read_text() for file in pages]):
        assert not found.tags & {"iframe", "object", "link", "base", "form", "image", "use"}
        assert not {name for name in found.attributes if name.startswith("on") or name == "style"}
        links = {link for link in found.links if not link.startswith("pages/")}
        assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in links)
    assert all("alert(1)" in text and "&lt;script&gt;" in text for text in texts)
    own = (Path(page.__file__).parent / "page.js").read_text()
    assert all(re.findall(r"<script.*?>(.*?)</script>", t, re.DOTALL) == [own] for t in texts)


def test_coordinates_are_rounded_and_texts_are_not():
    curve = figures.Line(np.array([0.0, 1 / 3]), np.array([0.1, 0.2]))
    panel = figures.Panel("", {"grpo lr=0.0003": [curve]}, "x", "y")
    drawn = figures.svg(figures.draw, [panel], 1, (3.0, 2.0))
    assert "grpo lr=0.0003" in drawn
    assert not re.search(r"\d\.\d{3}", re.sub(r"<text.*?</text>", "", drawn, flags=re.DOTALL))


def test_policy_allows_only_its_style_script_and_images(made: Path):
    text = (made / FILE).read_text()
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)
    own = re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for _, t in own]
    assert policy is not None and [kind for kind, _ in own] == ["style", "script"]
    assert policy[1].split("; ") == [
        "default-src 'none'", "img-src data:", f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip


def test_every_link_has_one_target(made: Path):
    found = Page((made / FILE).read_text())
    assert len(found.ids) == len(set(found.ids))
    inside = {link[1:] for link in found.links if link.startswith("#")}
    assert inside and inside <= set(found.ids)
    links = {link for link in found.links if not link.startswith(("#", "data:"))}
    files = {link.partition("#")[0] for link in links}
    assert files == {f"pages/{name}-{seed}.html" for name in ("grpo", "nlac") for seed in (0, 1)}
    for file in files:
        anchors = {link.partition("#")[2] for link in links if link.startswith(f"{file}#")}
        assert anchors and anchors <= set(Page((made / file).read_text()).ids)
    text = (made / FILE).read_text()
    shown = re.search(r"<code>agentrl show (.*?) --episode ID</code>", text)
    assert shown is not None
    (run,) = shlex.split(shown[1].replace("&#39;", "'"))
    assert find_run(run).name == "grpo-0"


def test_page_of_a_run_has_every_turn(made: Path):
    text = (made / "pages" / "nlac-0.html").read_text()
    assert {f"run-nlac-0-e{e}-t{t}" for e in range(8) for t in (1, 2)} <= set(Page(text).ids)
    assert text.count('class="pair"') == 3  # the new wins of BETTER beside the old losses
    assert 'class="pair"' not in (made / "pages" / "grpo-0.html").read_text()
    assert Page(text).titles == EPISODES


def test_examples_have_critic_texts_and_different_tasks():
    rows = [("cat", n, won, False) for n, won in enumerate([1, 0, 0, 0])]
    rows += [("dog", 0, 0, False), ("owl", 0, 0, True), ("owl", 1, 1, True)]
    entries = [EpisodeEntry(f"{t}-{n}", t, 0, 0, bool(w), 9, said) for t, n, w, said in rows]
    assert choose_examples(entries, {}, 2) == {"owl-0", "owl-1"}
    assert choose_examples(entries, {}, 5) == {"owl-0", "owl-1", "cat-0", "dog-0", "cat-1"}


@pytest.mark.slow
def test_long_episodes_do_not_grow_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_run(tmp_path / "long", algo="rft", text="word " * 50_000, seed=7)
    write_run(tmp_path / "short")
    monkeypatch.setattr(page, "MAX_CHARACTERS", 400_000)
    text = written(tmp_path / "out", tmp_path)
    assert len(text) < 1_000_000 and "word word" not in text and "run-short-e0-t1" in text


def test_figures_are_reproducible_and_keep_text(made: Path, tmp_path: Path):
    figures = {file.name: file.read_text() for file in made.glob("*.svg")}
    assert figures.keys() == {f"{name}-1.svg" for name in FIGURES}
    assert ">gradient steps</text>" in figures["curves-1.svg"]
    written(tmp_path, made.parent)
    assert figures == {file.name: file.read_text() for file in tmp_path.glob("*.svg")}


def test_strange_names_are_drawn_and_written(tmp_path: Path):
    for number, name in enumerate(("$HOME_\\frac$x", "plain.jsonl")):
        write_run(tmp_path / str(number), seed=number, data={"demos": name}, text="half \ud800")
    write_run(tmp_path / "gr\udcfc\udcdfe", seed=2, data={"demos": HOSTILE})
    assert written(tmp_path / "report", tmp_path)
    for file in (tmp_path / "report").glob("*.svg"):
        tags = {node.tag.rpartition("}")[2] for node in ElementTree.parse(file).iter()}
        assert "text" in tags and not tags & {"script", "image", "a"}


def test_report_follows_no_link_of_a_run(tmp_path: Path):
    run = write_run(tmp_path / "a")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / "report" / "pages").mkdir(parents=True)
    for name in (f".{FILE}.partial", FILE, "report.zip", "finals-1.svg", "pages/a.html"):
        (run / "report" / name).symlink_to(victim)
    report, folder = gather([str(run)]), folder_for([str(run)])
    write(report, folder)
    with ZipFile(pack(report, folder)) as packed:
        assert "report/pages/a.html" not in packed.namelist() and FILE in str(packed.namelist())
    write(report, folder, pages=True)
    assert victim.read_text() == "precious" and not (folder / FILE).is_symlink()
    shutil.rmtree(folder / "pages")
    (folder / "pages").symlink_to(tmp_path)
    with user_error("link-out-of-run", "pages"):
        write(report, folder, pages=True)
    assert "a.html" not in [file.name for file in tmp_path.iterdir()]
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    with user_error("link-out-of-run", "'"):
        folder_for([str(run)])


@pytest.mark.slow
def test_training_episodes_show_credit(tmp_path: Path):
    folder = write_run(tmp_path / "a")
    rows = episodes({"cat": [1, 0]}, advantage=-0.5, value=0.25)
    episode_files.write(folder / "episodes" / "train-000020.jsonl", rows)
    text = written(tmp_path / "out", tmp_path)
    # the only advantage is the largest: half of the bar, to the left of its middle
    bar = '<rect class="down" x="0.0" width="50.0" height="8"/>'
    assert "run-a-u0-t1" in text and text.count(bar) == text.count("<b>-0.50</b>") == 2
    assert text.count('<rect class="up" x="0.0" width="25.0" height="8"/>') == 2
    strip = re.search(r'<svg class="strip".*?</svg>', text)
    assert strip is not None
    columns = re.findall(r' y="([\d.]+)" width="5" height="([\d.]+)"', strip[0])
    assert columns == [("12.0", "12.0"), ("12.0", "0.0")]


@pytest.mark.slow
def test_log_probs_are_shown_on_request(tmp_path: Path):
    write_run(tmp_path / "a", model={"path": "tiny"})
    written(tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "pages").exists()
    written(tmp_path / "out", tmp_path, logprobs=True)
    text = (tmp_path / "out" / "pages" / "a.html").read_text()
    assert text.count('title="log-prob 0.000"') > 8


def test_missing_tokenizer_is_refused(tmp_path: Path):
    write_run(tmp_path / "a", model={"path": "../nobody/has this"})
    with pytest.raises(UserError, match="run 'a'") as error:
        written(tmp_path / "out", tmp_path, logprobs=True)
    assert error.value.code == "no-tokenizer"


@pytest.mark.slow
@pytest.mark.parametrize("names", [("one/same", "two/same"), ("one/\u00e4", "one/\u00f6")])
def test_runs_with_colliding_names_have_own_pages(tmp_path: Path, names: tuple[str, str]):
    runs = [
        write_run(tmp_path / name, seed=n, said={"value": 0.1 + n / 2})
        for n, name in enumerate(names)
    ]
    found = Page(written(tmp_path / "out", *runs, pages=True))
    assert len(found.ids) == len(set(found.ids))
    assert len([one for one in found.ids if re.fullmatch(r"run-[a-z_]+(-2)?", one)]) == 2
    pages = [file.read_text() for file in sorted((tmp_path / "out" / "pages").iterdir())]
    assert len(pages) == 2
    for value in ("0.100", "0.600"):
        assert sum(value in text for text in pages) == 1


def test_missing_matplotlib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="matplotlib") as error:
        written(tmp_path / "out", write_run(tmp_path / "a"))
    assert error.value.code == "missing-package"
