"""The report in a headless Chromium: its picture, its tools, and its security policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.report.compare import gather
from agentrl_cli.report.page import write
from agentrl_cli.runs import episode_files
from tests.builders.browser import CHROMIUM, HEIGHT, MISSING, WIDTH, browse
from tests.builders.report import BASE, episodes, write_run

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
image = pytest.importorskip("PIL.Image", reason="the picture is read with pillow")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,  # starts a browser
    pytest.mark.skipif(not CHROMIUM, reason=MISSING),
]
HOSTILE = "<script>document.body.remove()</script><img src=http://127.0.0.1:9/x.png>"


def evaluate(page: Path, folder: Path, script: str, *more: str, width: int = WIDTH) -> Any:
    """Return the result of a script in the page, which a hash in the policy allows."""
    text = f"document.title = JSON.stringify((() => {{ {script} }})());"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    changed = folder / "evaluated.html"
    policy = page.read_text().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    changed.write_text(policy.replace("</body>", f"<script>{text}</script></body>"))
    dom = browse(changed, folder, "--dump-dom", *more, width=width).stdout
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found is not None
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        said = {"critic": {"forecasts": ["Failure."], "critique": HOSTILE}}
        named = {"a_setting_with_a_long_name": HOSTILE}
        write_run(folder / f"grpo-{seed}", seed=seed, final=BASE, text=HOSTILE, data=named)
        named = {"a_setting_with_a_long_name": 2}
        run = write_run(
            folder / f"nlac-{seed}", algo="nlac", seed=seed, text=HOSTILE, said=said, data=named
        )
        trained = episodes({"cat": [1, 0]}, advantage=0.5)
        episode_files.write(run / "episodes" / "train-000020.jsonl", trained)
    return write(gather([str(folder)]), folder / "report", pages=True)


@pytest.fixture(scope="module")
def run_page(opened: Path) -> Path:
    return opened.parent / "pages" / "nlac-0.html"


def test_page_is_drawn_with_style_and_figures(opened: Path, tmp_path: Path):
    shot = tmp_path / "shot.png"
    browse(opened, tmp_path, f"--screenshot={shot}")
    picture = image.open(shot).convert("RGB")
    assert picture.size == (WIDTH, HEIGHT)
    colours = {colour for count, colour in picture.getcolors(1 << 24) if count > 40}
    assert (0x0B, 0x63, 0xA5) in colours  # a link: the style sheet was let in
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours  # the curves: the images were too
    assert picture.getpixel((WIDTH - 5, HEIGHT // 2)) == (255, 255, 255)


def test_episodes_are_searched_filtered_and_sorted(run_page: Path, tmp_path: Path):
    script = """
        const set = (control, value) => {
          control.value = value;
          control.dispatchEvent(new Event("input"));
          const list = document.querySelector(".episodes");
          return [...list.children].filter((e) => !e.hidden).map((e) => e.id.split("-").pop());
        };
        const [words, ends, order] = document.querySelectorAll(".tools input, .tools select");
        const found = [set(words, "t-owl")];
        found.push(set(words, ""), set(ends, "newly won"), set(ends, "lost"));
        set(ends, "all");
        found.push(set(order, "by the critic's error"));
        return found;
    """
    owl, everything, newly_won, lost, wrong = evaluate(run_page, tmp_path, script)
    assert owl == ["e4", "e5"] and everything == [f"e{n}" for n in range(8)]
    assert newly_won == ["e1", "e2", "e7"] and lost == ["e3", "e5", "e6"]
    assert set(wrong[:5]) == {"e0", "e1", "e2", "e4", "e7"}  # forecast lost, and won


def test_two_runs_are_compared_side_by_side(opened: Path, tmp_path: Path):
    script = """
        const buttons = document.querySelectorAll("details.run > summary > button");
        buttons[0].click();
        buttons[3].click();
        const comparison = document.getElementById("comparison");
        const titles = [...comparison.querySelectorAll("#comparison > .pair > div > h4")]
          .map((heading) => heading.textContent);
        const settings = [...comparison.querySelectorAll("dt")].map((term) => term.textContent);
        comparison.querySelector("button").click();
        return [titles, settings.includes("algo.name"), document.getElementById("comparison")];
    """
    titles, has_settings, left = evaluate(opened, tmp_path, script)
    assert titles == ["grpo-0 grpo", "nlac-0 nlac"] and has_settings and left is None


def test_other_runs_can_be_chosen_after_the_first(opened: Path, tmp_path: Path):
    script = """
        const buttons = [...document.querySelectorAll("details.run > summary > button")];
        buttons[0].click();
        scrollTo(0, document.body.scrollHeight);
        return buttons.slice(1).map((button) => {
          const box = button.getBoundingClientRect();
          return document.elementFromPoint(box.x + 5, box.y + 5) === button;
        });
    """
    assert evaluate(opened, tmp_path, script) == [True] * 5


@pytest.mark.parametrize("width", [WIDTH, 500])  # the least of a window is 500
def test_labels_do_not_cover_their_texts(opened: Path, tmp_path: Path, width: int):
    script = """
        document.querySelectorAll("details").forEach((details) => { details.open = true; });
        const terms = [...document.querySelectorAll("dt")];
        return [terms.length, terms.filter((term) => term.scrollWidth > term.clientWidth).length];
    """
    count, too_wide = evaluate(opened, tmp_path, script, width=width)
    assert count > 50 and too_wide == 0


def test_policy_blocks_injected_code(opened: Path, tmp_path: Path):
    spoiled = tmp_path / "spoiled.html"
    wild = "<script>document.title='run'</script><p style='color:red'>x</p></main>"
    spoiled.write_text(opened.read_text().replace("</main>", wild))
    done = browse(spoiled, tmp_path, "--dump-dom")
    assert "<title>run</title>" not in done.stdout
    assert "Content Security Policy" in done.stderr
