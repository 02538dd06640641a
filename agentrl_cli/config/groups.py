"""Groups of settings as files: their folders and their options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

PACKAGE = Path(__file__).parents[1]
SECTIONED = ("ablation",)  # groups of one file, which has a section for each option
ALGOS = "algos"  # the key of a recipe or an ablation for values of a single algorithm


def conf_folder() -> Path:
    """Return `./conf` if it holds algorithms, else the package's folder, else the repository's."""
    for folder in (Path("conf"), PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "algo").is_dir():
            return folder.resolve()
    raise UserError("conf/config.yaml is missing; install agentrl again", code="no-conf")


def group_folders(config_dir: Path | None) -> list[Path]:
    """Return the folders that hold groups: ours and the user's. Raises UserError if that is not a
    folder."""
    if config_dir is not None and not files.is_folder(config_dir):
        line = f"--config-dir '{config_dir}' is not a folder; name one with groups"
        raise UserError(line, code="no-config-dir")
    return [conf_folder(), *([config_dir] if config_dir else [])]


def groups(config_dir: Path | None = None) -> list[str]:
    """Return the names of all groups, a user's own included."""
    folders = [folder for root in group_folders(config_dir) for folder in root.iterdir()]
    names = {folder.name for folder in folders if folder.is_dir()}
    return sorted(names | {file.stem for file in _sectioned_files(config_dir)})


def options(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """Return the options of a group, each with the comment that describes it."""
    found: dict[str, str] = {}
    for root in group_folders(config_dir):
        if (file := root / f"{group}.yaml").is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            found |= dict(re.findall(r"^(\w+):(?: *# *(.*))?", text, re.MULTILINE))
        for file in sorted(root.glob(f"{group}/*.yaml")):
            text = file.read_text(encoding="utf-8", errors="replace")
            comment = re.match(r"(?:# @package.*\n)?#(?! @package) *(.*)", text)
            found[file.stem] = comment[1].strip() if comment else ""
    return found


def chooses(override: str, of_groups: Collection[str]) -> bool:
    """Return whether an override chooses an option of one of these groups."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0] in of_groups


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the end of an error: `; did you mean 'x'?`, or all names if none is similar."""
    choices = sorted(names)
    close = difflib.get_close_matches(word, choices, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose one of {', '.join(choices)}" if choices else "; it takes none"


def register_sections(config_dir: Path | None = None) -> None:
    """Make sections of files known to Hydra as options of groups.

    The sections of a file such as `ablation.yaml` are the options of the group `ablation`. The
    sections under `algos` of a recipe or an ablation apply to a single algorithm: `nlac` of the
    recipe `math` becomes the option `math_nlac` of the group `recipe_algos`.
    """
    from hydra.core.config_store import ConfigStore

    def store(group: str, sections: dict[str, Any], file: Path) -> None:
        source = str(file.relative_to(file.parents[file.parent.name == "recipe"]))
        for name, values in sections.items():
            ConfigStore.instance().store(name, values, group, "_global_", provider=source)

    for group in (*SECTIONED, *(f"{group}_{ALGOS}" for group in ("recipe", *SECTIONED))):
        ConfigStore.instance().repo.pop(group, None)
    for file in _sectioned_files(config_dir):
        for name, values in read_yaml(file).items():
            store(f"{file.stem}_{ALGOS}", _sections_of_algos(name, values), file)
            store(file.stem, {name: {key: values[key] for key in values if key != ALGOS}}, file)
    for root in group_folders(config_dir):
        for file in root.glob("recipe/*.yaml"):
            for part in with_bases(file):
                store(f"recipe_{ALGOS}", _sections_of_algos(file.stem, read_yaml(part)), part)


def _sectioned_files(config_dir: Path | None) -> list[Path]:
    paths = [root / f"{name}.yaml" for root in group_folders(config_dir) for name in SECTIONED]
    return [path for path in paths if path.is_file()]


def _sections_of_algos(name: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_{algo}": part for algo, part in (values.get(ALGOS) or {}).items()}


def with_bases(file: Path) -> list[Path]:
    """Return the files of the same folder that a file builds on, and the file itself."""
    names = [name for name in read_yaml(file).get("defaults", []) if isinstance(name, str)]
    bases = [file.with_name(f"{name}.yaml") for name in names if name != "_self_"]
    return [part for base in bases if base.is_file() for part in with_bases(base)] + [file]


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file, without resolved interpolations."""
    return _read_version(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _read_version(file: Path, changed: int) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return found if isinstance(found, dict) else {}
