"""The report as a person sees it: opened in a real headless Chromium, looked at as a picture."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agentrl_cli.cli.report import gather, write
from tests.builders.report import BASE, write_run

pytest.importorskip("matplotlib", reason="reports draw with matplotlib (extra: report)")
image = pytest.importorskip("PIL.Image", reason="the picture is read with pillow")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
MISSING = "no chromium on this machine (Debian: apt install chromium)"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,  # starts a browser
    pytest.mark.skipif(not CHROMIUM, reason=MISSING),
]
WIDTH, HEIGHT = 1200, 2400
HOSTILE = "<script>document.body.remove()</script><img src=http://127.0.0.1:9/x.png>"


def browse(page: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{HEIGHT}",
        "--enable-logging=stderr", "--v=0", *more, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over hostile texts."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        write_run(folder / f"grpo-{seed}", seed=seed, final=BASE, text=HOSTILE)
        write_run(folder / f"nlac-{seed}", algo="nlac", seed=seed, text=HOSTILE)
    return write(gather([str(folder)]), folder / "report")


def test_the_page_is_drawn_with_its_style_and_its_pictures(opened: Path, tmp_path: Path):
    shot = tmp_path / "shot.png"
    browse(opened, tmp_path, f"--screenshot={shot}")
    picture = image.open(shot).convert("RGB")
    assert picture.size == (WIDTH, HEIGHT)
    colours = {colour for count, colour in picture.getcolors(1 << 24) if count > 40}
    assert (0x0B, 0x63, 0xA5) in colours  # a link: the style sheet was let in
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours  # the curves: the images were too
    assert picture.getpixel((WIDTH - 5, HEIGHT // 2)) == (255, 255, 255)


def test_the_browser_refuses_nothing_and_runs_nothing(opened: Path, tmp_path: Path):
    done = browse(opened, tmp_path, "--dump-dom")
    assert "Final results" in done.stdout and "&lt;script&gt;" in done.stdout
    assert not re.findall(r".*(?:Content.Security.Policy|ERR_|Refused).*", done.stderr)


def test_the_policy_is_in_force(opened: Path, tmp_path: Path):
    spoiled = tmp_path / "spoiled.html"
    wild = "<script>document.title='run'</script><p style='color:red'>x</p></main>"
    spoiled.write_text(opened.read_text().replace("</main>", wild))
    done = browse(spoiled, tmp_path, "--dump-dom")
    assert "<title>run</title>" not in done.stdout
    assert "Content Security Policy" in done.stderr
