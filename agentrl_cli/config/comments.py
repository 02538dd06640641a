"""List the keys of a composed configuration, each with its description and its source."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.config.compose import compose, forced, parse_overrides, search_path
from agentrl_cli.config.groups import conf_folder, group_folders, nearest, options, read_yaml
from agentrl_cli.config.settings import Settings as Root
from agentrl_cli.config.validation import described
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

COMMAND_LINE = "command line"
COLUMN = 44  # at which comments begin


@dataclass(frozen=True)
class Entry:
    """A key, its composed value, its description (or ""), and its source: a file such as
    `algo/grpo.yaml`, or the command line."""

    key: str
    value: Any
    comment: str
    source: str


@dataclass(frozen=True)
class Settings:
    """The keys of a configuration in its order, and the descriptions of the nodes."""

    entries: list[Entry]
    node_comments: dict[str, str]


def settings(overrides: list[str], config_dir: Path | None = None) -> Settings:
    """Return all keys that overrides compose; values are not checked. Raises UserError for unknown
    options and for unreadable files."""
    from omegaconf import OmegaConf

    cfg = compose(overrides, config_dir)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    del plain["choices"]
    comments = dict(described(Root, plain))
    sources = {
        ".".join(filter(None, (part.node, key))): part.file
        for part in parts(overrides, config_dir)
        for key in files.flatten(part.values)
    }
    for item in parse_overrides(overrides):
        keys = files.flatten({item.key_or_group: item.value()})
        sources |= dict.fromkeys(keys, COMMAND_LINE)
    flat = files.flatten(plain)
    found = [
        Entry(key, _resolved(cfg, key, value), comments.get(key, ""), _source(key, sources))
        for key, value in flat.items()
    ]
    return Settings(found, {key: text for key, text in comments.items() if key not in flat})


def option_settings(group: str, option: str, config_dir: Path | None = None) -> Settings:
    """Return the keys that an option of a group sets, including those of its bases."""
    if option not in (known := options(group, config_dir)):
        raise UserError(
            f"{group} '{option}' not found{nearest(option, known)}", code="unknown-option"
        )
    found = settings([f"{group}={option}"], config_dir)
    own = [entry for entry in found.entries if entry.source.startswith(f"{group}/")]
    return Settings([e for e in own if not e.key.endswith("_target_")], found.node_comments)


def render(found: Settings) -> list[str]:
    """Return the settings as lines of YAML with descriptions and sources as comments."""
    lines: list[str] = []
    above: list[str] = []
    for entry in found.entries:
        *path, name = entry.key.split(".")
        for depth in range(len(path)):
            if above[: depth + 1] != path[: depth + 1]:
                about = found.node_comments.get(".".join(path[: depth + 1]), "")
                lines.append(_line(f"{'  ' * depth}{path[depth]}:", about))
        about = f"{entry.comment} [{entry.source}]".strip()
        lines.append(_line(f"{'  ' * len(path)}{name}: {shown(entry.value)}", about))
        above = path
    return lines


def _line(text: str, about: str) -> str:
    return f"{text:<{COLUMN}}  # {about}" if about else text


def shown(value: Any) -> str:
    """Return a value as YAML in one line."""
    import yaml

    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").rstrip("\n")


@dataclass(frozen=True)
class Part:
    """A file or a section that Hydra merges: its name (`algo/grpo`), node, values and source."""

    name: str
    node: str
    values: dict[str, Any]
    file: str


def parts(overrides: list[str], config_dir: Path | None) -> list[Part]:
    """Return the parts that overrides compose; later ones win. Raises UserError as `compose`."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    compose(overrides, config_dir)
    texts = [forced(item, config_dir) for item in parse_overrides(overrides)]
    found = []
    with hydra.initialize_config_dir(str(conf_folder()), version_base=None):
        loader: Any = GlobalHydra.instance().config_loader()
        all_texts = search_path(config_dir) + texts
        for item in loader.compute_defaults_list("config", all_texts, RunMode.RUN).defaults:
            name, node = str(item.config_path), item.package or ""
            if name.startswith("hydra/"):
                continue
            paths = [folder / f"{name}.yaml" for folder in group_folders(config_dir)]
            if file := next(filter(files.is_file, paths), None):
                found.append(Part(name, node, read_yaml(file), f"{name}.yaml"))
            elif section := loader.repository.load_config(name):
                values: Any = OmegaConf.to_container(section.config, resolve=False)
                found.append(Part(name, node, values or {}, section.provider))
    return found


def _resolved(cfg: Any, key: str, value: Any) -> Any:
    """Return a value with its interpolations resolved, or as it is written if they cannot be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        found = OmegaConf.select(cfg, key)
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    except OmegaConfBaseException:
        return value


def _source(key: str, sources: dict[str, str]) -> str:
    """Return the source of a key, or of the node that holds it."""
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return sources.get(key, "")
