"""The groups of settings as files: where they lie and what there is to choose. What is in a file is
read in `compose`, and with its comments in `comments`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

PACKAGE = Path(__file__).parents[1]


def conf_folder() -> Path:
    """The folder of the groups: `./conf` where it has algorithms (another program's has none), else
    the package's own, else the repository's."""
    for folder in (Path("conf"), PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "algo").is_dir():
            return folder.resolve()
    raise UserError("no conf/config.yaml found; install agentrl again, or run it where one is")


def groups(config_dir: Path | None = None) -> list[str]:
    """The names of all groups, a user's own included."""
    folders = [folder for root in group_folders(config_dir) for folder in root.iterdir()]
    return sorted({folder.name for folder in folders if folder.is_dir()})


def options(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """The options of a group, each with the comment its file opens with."""
    folders = [root / group for root in group_folders(config_dir)]
    found = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    return {file.stem: _opening_comment(file) for file in found}


def group_folders(config_dir: Path | None) -> list[Path]:
    """The folders whose folders are groups: ours, and a user's own. Raises UserError where that is
    none."""
    if config_dir is not None and not files.is_folder(config_dir):
        raise UserError(f"--config-dir '{config_dir}' is not a folder; name one that holds groups")
    return [conf_folder(), *([config_dir] if config_dir else [])]


def chooses(override: str, of_groups: Collection[str]) -> bool:
    """Whether an override, as it is typed, chooses an option of one of these groups."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0] in of_groups


def _opening_comment(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    return lines[0].lstrip("# ").strip() if lines and lines[0].startswith("#") else ""
