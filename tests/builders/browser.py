"""Headless Chromium, for tests that open a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
MISSING = "no chromium on this machine (Debian: apt install chromium)"
WIDTH, HEIGHT = 1200, 2400


def browse(
    page: Path, folder: Path, *more: str, width: int = WIDTH
) -> subprocess.CompletedProcess[str]:
    """Open a page with a profile in `folder` and further options of Chromium."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--disable-sync", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{HEIGHT}",
        "--enable-logging=stderr", "--v=0", *more, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
