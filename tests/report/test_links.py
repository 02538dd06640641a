"""From the table of a report to any turn of any game: links, commands, and names that collide."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agentrl_cli.cli.report import FILE, gather, write
from agentrl_cli.report.summary import final_table
from agentrl_cli.report.views import slugs
from agentrl_cli.runs.find import find_run
from agentrl_cli.runs.run import Run
from tests.builders.report import Page, write_run
from tests.builders.runs import Agentrl

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
GAMES = [f"t-{task}-e{n:02d}" for task in ("cat", "dog", "owl", "elk") for n in (0, 1)]


def page(folder: Path, *runs: Path, pages: bool = False) -> Page:
    return Page(write(gather([str(run) for run in runs]), folder, pages=pages).read_text())


def test_the_command_under_a_grid_finds_the_run_wherever_it_lies(tmp_path: Path):
    run = write_run(tmp_path / "far from runs" / "it")
    text = write(gather([str(run)]), tmp_path / "out").read_text()
    (told,) = re.findall(r"<code>(agentrl show .*?) --episode ID</code>", text)
    _, _, ref = shlex.split(told.replace("&#39;", "'"))
    assert find_run(ref).folder == run


def test_the_end_of_a_run_and_the_hint_beside_an_episode_name_its_folder(
    agentrl: Agentrl, tmp_path: Path
):
    run = write_run(tmp_path / "elsewhere" / "it")
    assert final_table(Run(run)).splitlines()[-1] == f"next: agentrl show {run}"
    shown = agentrl("show", str(run))
    assert f"another: agentrl show {run} --episode ID" in shown.stderr


def test_every_circle_tells_its_episode_and_each_seed_leads_to_its_run(tmp_path: Path):
    runs = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    text = write(gather([str(run) for run in runs]), tmp_path / "out").read_text()
    assert Page(text).titles == GAMES * 2
    assert '<td><a href="#run-a">0</a> <a href="#run-b">1</a></td>' in text
    assert {"run-a", "run-b"} <= set(Page(text).ids)


@pytest.mark.slow
def test_with_pages_every_circle_leads_to_its_game(tmp_path: Path):
    run = write_run(tmp_path / "it")
    alone = page(tmp_path / "a", run)
    found = page(tmp_path / "b", run, pages=True)
    games = [link for link in found.links if "-e" in link]
    assert len(games) == len(GAMES) > len([link for link in alone.links if "-e" in link])
    inside = set(Page((tmp_path / "b" / "pages" / "it.html").read_text()).ids)
    for link in games:
        file, _, anchor = link.partition("#")
        assert anchor in (inside if file else found.ids) and file in ("", "pages/it.html")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a-2", "a-3"]),
        (["a", "a", "a-2"], ["a", "a-2", "a-2-2"]),
        (["ä", "ö", "_"], ["_", "_-2", "_-3"]),
        (["x" * 200, "x" * 201], ["x" * 120, "x" * 120 + "-2"]),
    ],
)
def test_slugs_that_come_out_equal_are_numbered(names: list[str], told: list[str]):
    assert slugs(names) == told


@pytest.mark.parametrize("names", [("one/same", "two/same"), ("one/\u00e4", "one/\u00f6")])
def test_runs_whose_names_collide_have_pages_and_anchors_of_their_own(
    tmp_path: Path, names: tuple[str, str]
):
    runs = [
        write_run(tmp_path / name, seed=n, said={"value": 0.1 + n / 2})
        for n, name in enumerate(names)
    ]
    found = page(tmp_path / "out", *runs, pages=True)
    assert len(found.ids) == len(set(found.ids))
    assert len([one for one in found.ids if re.fullmatch(r"run-[a-z_]+(-2)?", one)]) == 2
    pages = sorted((tmp_path / "out" / "pages").iterdir())
    assert len(pages) == 2
    told = [file.read_text() for file in pages]
    assert {"0.100" in text for text in told} == {"0.600" in text for text in told} == {True, False}
    inside = {link[1:] for link in found.links if link.startswith("#")}
    assert inside <= set(found.ids) and (tmp_path / "out" / FILE).is_file()
