"""Reports: figures by hand, damage stated, one page that fetches and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from agentrl_cli.cli.report import FILE, Report, folder_for, gather, render, write
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.files import write_jsonl
from agentrl_cli.report import page
from agentrl_cli.report.compare import Comparison, compare, worlds
from agentrl_cli.report.critic import predictions
from agentrl_cli.report.differences import differences
from agentrl_cli.report.episode import known_end, texts
from agentrl_cli.report.records import read_records
from agentrl_cli.report.tables import remarks
from agentrl_cli.runs import episode_files
from tests.builders.report import BASE, BETTER, Page, break_lines, episodes, write_run

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
PICTURES = ("curves", "finals", "costs", "training", "critic")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e&lt;b"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two algorithms, two seeds each."""
    for seed in (0, 1):
        write_run(tmp_path / f"grpo-{seed}", seed=seed, final=BASE)
        write_run(tmp_path / f"nlac-{seed}", algo="nlac", seed=seed)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with all pages over runs of hostile texts, in its folder."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder / f"grpo-{seed}", seed=seed, final=BASE, text=HOSTILE)
        said = {"critic": {"forecasts": [HOSTILE + " Success."], "critique": HOSTILE}}
        write_run(folder / f"nlac-{seed}", algo="nlac", seed=seed, said=said)
    return write(gather([str(folder)]), folder_for([str(folder)]), pages=True).parent


def test_copies_of_a_run_count_once_and_are_named(two: Path, tmp_path: Path):
    shutil.copytree(two / "grpo-1", two / "grpo-1 copy")
    report = report_of(two)
    (row,) = (row for row in report.comparisons[0].rows if row.group == "grpo")
    assert len(row.scores) == 2 and report.notes == [
        "run 'grpo-1 copy' is a copy of another run in the report, and is left out"
    ]


def test_runs_that_start_from_runs_beside_them_are_grouped_wherever_the_report_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"base-{seed}", algo="sft", seed=seed)
        write_run(tmp_path / "runs" / f"own-{seed}", seed=seed, init=f"runs/base-{seed}")
    monkeypatch.chdir(tmp_path / "runs")
    (world,) = worlds(read_records(["own-0", "own-1"]))
    assert [len(group.records) for group in world.groups] == [2]


def test_names_that_no_font_or_file_likes_are_drawn_and_written(tmp_path: Path):
    for number, name in enumerate(("$HOME_\\frac$x", "plain.jsonl")):
        write_run(tmp_path / str(number), seed=number, data={"demos": name}, text="half \ud800")
    write_run(tmp_path / "gr\udcfc\udcdfe", seed=2)
    labels = [row.group for row in report_of(tmp_path).comparisons[0].rows]
    assert any("$HOME_\\frac$x" in label for label in labels)
    write(report_of(tmp_path), tmp_path / "report")
    assert (tmp_path / "report" / FILE).read_text(encoding="utf-8")


def report_of(folder: Path) -> Report:
    return gather([str(folder)])


def only(folder: Path, against: str | None = None, threshold: float | None = None) -> Comparison:
    (world,) = worlds(read_records([str(folder)]))
    return compare(world, against, threshold)


# figures


def test_figures_of_a_group_by_hand(two: Path):
    rows = {row.group: row for row in only(two, "grpo").rows}
    nlac = rows["nlac"]
    assert (nlac.seeds, nlac.scores) == ([0, 1], [5 / 8, 5 / 8])
    assert nlac.base is not None and nlac.base.mean == 2 / 8
    assert nlac.final.mean == 5 / 8
    assert nlac.gain is not None and nlac.gain.mean == 3 / 8
    # by task the gains are 1/2, 1/2, 0, 1/2, the same in both seeds
    assert nlac.difference is not None and nlac.difference.mean == pytest.approx(3 / 8)
    assert nlac.improvement is not None and nlac.improvement.mean == 1
    assert rows["grpo"].difference is None and rows["grpo"].improvement is None


def test_episodes_that_broke_are_told(tmp_path: Path):
    folder = write_run(tmp_path / "a", final=BASE)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["eval/test_failed"] = 0.125
    write_jsonl(folder / "metrics.jsonl", rows)
    assert "Episodes that broke count as lost: grpo (12.5 %)." in remarks(only(tmp_path))


def test_an_end_that_nobody_knows_is_no_judge_of_a_critic():
    (won,) = episodes({"cat": [1]}, critic={"forecasts": ["Outcome: success"]})
    assert [(p.expected, p.won) for p in predictions([won])] == [(1, True)]
    assert "reality" in dict(texts(won.turns[0], known_end(won)))
    won.stop = "context"
    assert predictions([won]) == [] and "reality" not in dict(texts(won.turns[0], known_end(won)))


def test_chances_of_several_tries_by_hand(two: Path):
    nlac = {row.group: row for row in only(two).rows}["nlac"]
    # of two games each: cat both, dog one, owl one, elk one
    assert nlac.passes.keys() == {"pass@2", "pass^2"}
    assert (nlac.passes["pass@2"].mean, nlac.passes["pass^2"].mean) == (1.0, 1 / 4)
    assert nlac.passes["pass^2"].low == 0 and nlac.passes["pass^2"].high > 1 / 4


def test_costs_are_means_over_runs(two: Path):
    (grpo, _) = only(two).rows
    assert grpo.cost["episodes"] == 200 and grpo.cost["tokens_played"] == 2000
    assert grpo.cost["tokens_read"] == 1600 and grpo.cost["seconds"] == pytest.approx(60)
    assert grpo.cost["seconds_rollout"] == 20 and grpo.cost["seconds_eval"] == 14


def test_a_run_that_failed_changes_no_figure_of_its_group(two: Path):
    before = only(two, "nlac", threshold=0.399).rows[0]
    dead = write_run(two / "dead", seed=2, status="failed")
    lines = (dead / "metrics.jsonl").read_text().splitlines(keepends=True)
    (dead / "metrics.jsonl").write_text("".join(lines[:4]))
    after = only(two, "nlac", threshold=0.399).rows[0]
    assert after == before and after.cost["episodes"] == 200
    assert after.efficiency is not None and after.efficiency.runs == 2


def test_a_threshold_is_reached_by_the_mean_of_five_updates(two: Path):
    # the mean of updates n-4 to n is 0.2 + 0.02 (n - 2): 0.40 first at n = 12
    efficiency = only(two, threshold=0.399).rows[0].efficiency
    assert efficiency is not None and (efficiency.reached, efficiency.runs) == (2, 2)
    assert (efficiency.episodes, efficiency.seconds) == (120, 36)
    never = only(two, threshold=0.9).rows[0].efficiency
    assert never is not None and (never.reached, never.episodes) == (0, None)
    halfway = only(two).rows[0].efficiency
    assert halfway is not None and halfway.threshold == pytest.approx((2 / 8 + 5 / 8) / 2)


def test_curves_can_be_read_against_three_axes(two: Path):
    record = read_records([str(two / "grpo-0")])[0]
    assert [record.axis(x)[-1] for x in ("episodes", "gradient steps", "seconds")] == [200, 40, 60]


def test_noise_is_between_seeds_of_one_configuration_only(tmp_path: Path):
    for seed, final in enumerate((BASE, BETTER)):
        write_run(tmp_path / f"a{seed}", seed=seed, final=final)
        write_run(tmp_path / f"b{seed}", algo="rft", seed=seed)
    floor = only(tmp_path).noise
    assert floor is not None and floor.freedom == 2
    # squares: of a 2 x (3/16)^2, of b none
    assert floor.deviation == pytest.approx((2 * (3 / 16) ** 2 / 2) ** 0.5)


def test_configurations_that_differ_are_groups_named_by_what_differs(tmp_path: Path):
    write_run(tmp_path / "a", algo="nlac", init=None)
    write_run(tmp_path / "b", algo="nlac", init="elsewhere/base", seed=1)
    write_run(tmp_path / "c", algo="rft", seed=1, hardware={"threads": 1})
    write_run(tmp_path / "d", algo="rft", seed=2, hardware={"threads": 2})
    labels = [row.group for row in only(tmp_path).rows]
    assert labels == ["nlac init=null", "nlac init=elsewhere/base", "rft"]


def test_the_group_without_a_control_is_called_by_its_algorithm_alone(tmp_path: Path):
    for seed, control in enumerate(("none", "shuffled_outcomes")):
        write_run(tmp_path / control, algo="nlac", seed=seed, advanced={"control": control})
    (comparison,) = gather([str(tmp_path)], against="nlac").comparisons
    assert [row.group for row in comparison.rows] == ["nlac", "nlac control=shuffled_outcomes"]
    assert comparison.reference == "nlac"


@pytest.mark.parametrize("threshold", [40, -1, float("nan")])
def test_a_threshold_that_is_no_share_is_refused(two: Path, threshold: float):
    with pytest.raises(UserError, match="--threshold is "):
        gather([str(two)], threshold=threshold)


def test_configurations_whose_names_are_cut_alike_are_told_apart(tmp_path: Path):
    for number in (1, 2):
        far = f"runs/{'x' * 40}{number}{'y' * 40}"
        write_run(tmp_path / str(number), algo="nlac", init=far, seed=number)
    labels = [row.group for row in only(tmp_path).rows]
    assert len(set(labels)) == 2 and labels[1] == f"{labels[0]} (2)"


# bad input


def test_a_damaged_metrics_file_is_used_as_far_as_it_can_be_read(two: Path):
    break_lines(two / "nlac-0", 3, 4)
    with (two / "nlac-1" / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": "x"}\n\xff\xfe\n{"cut off')
    found = report_of(two)
    assert "run 'nlac-0': 2 lines of metrics.jsonl cannot be read, left out" in found.notes
    assert "run 'nlac-1': 3 lines of metrics.jsonl cannot be read, left out" in found.notes
    assert [row.scores for row in found.comparisons[0].rows] == [[2 / 8] * 2, [5 / 8] * 2]


def test_a_run_that_is_going_or_failed_is_left_out_of_the_finals_and_said(two: Path):
    write_run(two / "young", algo="rft", status="running", seed=3)
    write_run(two / "dead", algo="rft", status="failed", seed=4)
    found = report_of(two)
    assert [row.group for row in found.comparisons[0].rows] == ["grpo", "nlac"]
    notes = " ".join(found.notes)
    assert "'young' is still going, or its machine died (step 20 of 20)" in notes
    assert "'dead' failed at step 20 of 20" in notes


def test_only_unfinished_runs_still_make_a_page(tmp_path: Path):
    write_run(tmp_path / "young", status="running")
    found = report_of(tmp_path)
    assert "no run has finished" in render(found)
    assert "No run has finished" in write(found, tmp_path / "out").read_text()


def test_runs_of_different_environments_are_kept_apart_and_said(two: Path):
    write_run(two / "else", env="arithmetic", seed=5)
    found = report_of(two)
    assert len(found.comparisons) == 2
    assert "their numbers do not compare: twentyq; arithmetic" in found.notes[0]


def test_without_episode_files_runs_are_compared_by_their_means(two: Path):
    for file in (two / "nlac-0" / "episodes").iterdir():
        file.unlink()
    (two / "grpo-0" / "episodes" / "eval-000020.jsonl").write_text("nothing\n")
    (two / "grpo-0" / "episodes" / "eval-000020.index.json").unlink()
    (grpo, nlac) = report_of(two).comparisons[0].rows
    assert (grpo.final.mean, nlac.final.mean) == (2 / 8, 5 / 8)


def test_a_run_without_its_configuration_is_one_sentence(two: Path):
    (two / "nlac-0" / "config.yaml").write_text("{")
    assert any("config.yaml cannot be read" in note for note in report_of(two).notes)


def test_nothing_to_compare_is_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="holds no runs"):
        report_of(tmp_path)
    write_run(tmp_path / "a")
    with pytest.raises(UserError, match="--against 'b' is none of the compared; there is grpo"):
        gather([str(tmp_path)], against="b")


# the page


def test_what_models_and_users_wrote_is_shown_and_never_acted_upon(made: Path):
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


def test_the_policy_allows_one_style_sheet_one_script_and_inner_images_only(made: Path):
    text = (made / FILE).read_text()
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)
    own = re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for _, t in own]
    assert policy is not None and [kind for kind, _ in own] == ["style", "script"]
    assert policy[1].split("; ") == [
        "default-src 'none'", "img-src data:", f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip


def test_every_link_leads_somewhere_and_every_anchor_is_one_place(made: Path):
    found = Page((made / FILE).read_text())
    assert len(found.ids) == len(set(found.ids))
    inside = {link[1:] for link in found.links if link.startswith("#")}
    assert inside and inside <= set(found.ids)
    links = {link for link in found.links if not link.startswith(("#", "data:"))}
    outside = {link.partition("#")[0] for link in links}
    assert outside == {f"pages/{name}-{seed}.html" for name in ("grpo", "nlac") for seed in (0, 1)}
    assert all((made / link).is_file() for link in outside)


def test_a_run_s_own_page_holds_every_turn_of_every_episode(made: Path):
    found = Page((made / "pages" / "nlac-0.html").read_text())
    assert {f"run-nlac-0-e{e}-t{t}" for e in range(8) for t in (1, 2)} <= set(found.ids)


def test_a_page_stays_small_however_long_the_episodes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_run(tmp_path / "long", algo="rft", text="word " * 50_000, seed=7)
    write_run(tmp_path / "short")
    monkeypatch.setattr(page, "MAX_CHARACTERS", 400_000)
    text = write(report_of(tmp_path), tmp_path / "out").read_text()
    assert len(text) < 1_000_000 and "word word" not in text and "run-short-e0-t1" in text


def test_pictures_are_written_beside_the_page_and_the_same_again(made: Path, tmp_path: Path):
    pictures = {file.name: file.read_text() for file in made.glob("*.svg")}
    assert pictures.keys() == {f"{name}-1.svg" for name in PICTURES}
    write(report_of(made.parent), tmp_path)
    assert pictures == {file.name: file.read_text() for file in tmp_path.glob("*.svg")}


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"agentrl-cli\[report\]"):
        write(report_of(tmp_path), tmp_path / "out")


def test_the_page_shows_what_the_critic_knew(made: Path):
    text = (made / FILE).read_text()
    assert "What the critics knew" in text and "nlac</b>: 16 annotated turns" in text
    assert "won, as 1 of 1 forecasts said" in text


def test_a_game_that_ended_otherwise_stands_beside_the_same_game_before_training(made: Path):
    text = (made / "pages" / "nlac-0.html").read_text()
    assert text.count("the same task before training: lost") == 3  # of BETTER's new wins
    assert "the same task before training" not in (made / "pages" / "grpo-0.html").read_text()


def test_settings_in_which_groups_differ_are_told_and_those_of_one_group_counted(tmp_path: Path):
    write_run(tmp_path / "a", algo="rft", lr=0.1, same=1, clip=2)
    write_run(tmp_path / "b", algo="rft", seed=1, lr=0.2, same=1)
    found = differences(worlds(read_records([str(tmp_path)]))[0])
    groups = ["rft clip=2 lr=0.1", "rft lr=0.2"]
    assert found.cells == [["setting", *groups], ["lr", "0.1", "0.2"]]
    assert found.of_one_group == 1 and found.of(groups[1]) == [("lr", "0.2")]
    text = write(report_of(tmp_path), tmp_path / "out").read_text()
    assert "1 settings that only one of them has are left out" in text


def test_episodes_that_were_trained_on_show_the_credit_of_each_turn(tmp_path: Path):
    folder = write_run(tmp_path / "a")
    rows = episodes({"cat": [1, 0]}, advantage=-0.5)
    episode_files.write(folder / "episodes" / "train-000020.jsonl", rows)
    text = write(report_of(tmp_path), tmp_path / "out").read_text()
    assert "Trained on in step 20" in text and "run-a-u0-t1" in text
    assert text.count("<b>-0.50</b>") == 2


def test_log_probs_of_tokens_are_shown_where_they_are_asked_for(tmp_path: Path):
    write_run(tmp_path / "a", model={"path": "tiny"})
    write(report_of(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out" / "pages").exists()
    write(report_of(tmp_path), tmp_path / "out", logprobs=True)
    text = (tmp_path / "out" / "pages" / "a.html").read_text()
    assert text.count('title="log-prob 0.000"') > 8


def test_a_tokenizer_that_is_not_here_is_one_sentence(tmp_path: Path):
    write_run(tmp_path / "a", model={"path": "../nobody/has this"})
    remedy = "report it where its model lies, or without --logprobs"
    with pytest.raises(UserError, match=f"run 'a': the tokenizer of its model is not .*; {remedy}"):
        write(report_of(tmp_path), tmp_path / "out", logprobs=True)


def test_runs_that_each_start_from_a_run_of_their_own_seed_are_one_group(tmp_path: Path):
    for seed in range(3):
        write_run(tmp_path / f"sft-s{seed}", algo="sft", seed=seed)
        init = str(tmp_path / f"sft-s{seed}") if seed else "sft-s0"  # by its name beside it, too
        write_run(tmp_path / f"dpo-s{seed}", algo="dpo", seed=seed, init=init)
    write_run(tmp_path / "sft-long", algo="sft", seed=0, steps=30)
    write_run(tmp_path / "dpo-long", algo="dpo", seed=0, init=str(tmp_path / "sft-long"))
    write_run(tmp_path / "dpo-lost", algo="dpo", seed=0, init="gone")
    (world,) = worlds(read_records([str(tmp_path)]))
    found = {group.label: sorted(record.name for record in group.records) for group in world.groups}
    assert ["dpo-s0", "dpo-s1", "dpo-s2"] in found.values()
    assert ["dpo-long"] in found.values() and ["dpo-lost"] in found.values()
    assert {name.partition("-")[0] for name in found if name.startswith("dpo")} == {
        "dpo init=sft", "dpo init=gone",
    }  # fmt: skip
