"""List the keys of a composed configuration, each with its description and its source."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from agentrl_cli.config.compose import (
    ConfigDirs,
    compose,
    conf_folder,
    forced,
    group_folders,
    not_found,
    options,
    parse_overrides,
    read_yaml,
    search_path,
)
from agentrl_cli.config.settings import Settings
from agentrl_cli.config.validation import described
from agentrl_cli.core import files
from agentrl_cli.core.terminal import wrapped

COMMAND_LINE = "command line"
MIN_COMMENT = 40  # characters of a comment beside its key; below that it is above it
COLUMN = 44  # at which comments begin
Row = dict[str, Any]  # key, value, comment (or ""), and source: a file or COMMAND_LINE


def settings(
    overrides: list[str], config_dirs: ConfigDirs = None
) -> tuple[list[Row], dict[str, str]]:
    """Return all keys that overrides compose, and the descriptions of their nodes.

    Values are not checked. Raises UserError for unknown options and for unreadable files.
    """
    from omegaconf import OmegaConf

    cfg = compose(overrides, config_dirs)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    del plain["choices"]
    comments = dict(described(Settings, plain))
    sources: dict[str, str] = {}
    for node, values, source in _parts(overrides, config_dirs):
        flat = files.flatten(values, keep_empty=True)
        keys = (f"{node}.{key}" if node else key for key in flat)
        sources |= dict.fromkeys(keys, source)
    for item in parse_overrides(overrides):
        keys = files.flatten({item.key_or_group: item.value()})
        sources |= dict.fromkeys(keys, COMMAND_LINE)
    rows = []
    for key, value in files.flatten(plain, keep_empty=True).items():
        holder = key  # the source of a key may be that of its node
        while holder and holder not in sources:
            holder = holder.rpartition(".")[0]
        row = {"key": key, "value": _resolved(cfg, key, value), "comment": comments.pop(key, "")}
        rows.append(row | {"source": sources.get(holder, "")})
    return rows, comments


def option_settings(
    group: str, option: str, config_dirs: ConfigDirs = None
) -> tuple[list[Row], dict[str, str]]:
    """Return the keys that an option of a group sets, including those of its bases."""
    if option not in (known := options(group, config_dirs)):
        raise not_found(group, option, known)
    rows, node_comments = settings([f"{group}={option}"], config_dirs)
    own = [row for row in rows if row["source"].startswith(f"{group}/")]
    return [row for row in own if not row["key"].endswith("_target_")], node_comments


def render(rows: list[Row], node_comments: dict[str, str], width: int | None = None) -> list[str]:
    """Return the settings as lines of YAML with descriptions and sources as comments, which are
    wrapped to the width of a terminal."""
    lines: list[str] = []
    above: list[str] = []

    def add(depth: int, text: str, about: str) -> None:
        line = f"{'  ' * depth}{text}"
        column = max(COLUMN, len(line)) + len("  # ")
        if about and width is not None and width < min(column + MIN_COMMENT, column + len(about)):
            start = f"{'  ' * depth}# "
            lines.extend(f"{start}{part}" for part in wrapped(about, width, len(start)))
            lines.append(line)
            return
        first, *others = wrapped(about, width, column)
        lines.append(f"{line:<{COLUMN}}  # {first}" if about else line)
        lines.extend(f"{'':<{column - 2}}# {part}" for part in others)

    for row in rows:
        *path, name = row["key"].split(".")
        for depth in range(len(path)):
            if above[: depth + 1] != path[: depth + 1]:
                about = node_comments.get(".".join(path[: depth + 1]), "")
                add(depth, f"{path[depth]}:", about)
        about = f"{row['comment']} [{row['source']}]".strip()
        add(len(path), f"{name}: {shown(row['value'])}", about)
        above = path
    return lines


def shown(value: Any) -> str:
    """Return a value as YAML in one line."""
    import yaml

    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").rstrip("\n")


def _parts(overrides: list[str], config_dirs: ConfigDirs) -> Iterator[tuple[str, Any, str]]:
    """Yield node, values and source of all files and sections that Hydra merges, in its order."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    texts = [forced(item, config_dirs) for item in parse_overrides(overrides)]
    texts = search_path(config_dirs) + texts
    with hydra.initialize_config_dir(str(conf_folder()), version_base=None):
        loader: Any = GlobalHydra.instance().config_loader()
        for item in loader.compute_defaults_list("config", texts, RunMode.RUN).defaults:
            name, node = str(item.config_path), item.package or ""
            if name.startswith("hydra/"):
                continue
            paths = [folder / f"{name}.yaml" for folder in group_folders(config_dirs)]
            if file := next(filter(files.is_file, paths), None):
                yield node, read_yaml(file), f"{name}.yaml"
            elif section := loader.repository.load_config(name):
                values = OmegaConf.to_container(section.config, resolve=False)
                yield node, values or {}, section.provider


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
