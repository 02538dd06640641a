"""Every key of a composed configuration with what its file says of it and where its value was set:
for people who ask what there is to set. Values are composed in `compose`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_cli.config.compose import compose, forced, parse_overrides, search_path
from agentrl_cli.config.groups import conf_folder, group_folders, options
from agentrl_cli.config.settings import Settings as Root
from agentrl_cli.config.validation import described
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from yaml import Node

COMMAND_LINE = "command line"
LONGEST = 44  # of a key with its value, behind which its comment begins


@dataclass(frozen=True)
class Entry:
    """A key, its value as composed, the comment of the file that explains it (or ""), and where the
    value was set: a file like `algo/grpo.yaml`, or the command line."""

    key: str
    value: Any
    comment: str
    source: str


@dataclass(frozen=True)
class Settings:
    """The keys of a configuration in its order, and the comments of the nodes that hold them."""

    entries: list[Entry]
    node_comments: dict[str, str]


def settings(overrides: list[str], config_dir: Path | None = None) -> Settings:
    """All keys that overrides compose; values are not checked. Raises UserError for unknown options
    and for files that cannot be read."""
    from omegaconf import OmegaConf

    cfg = compose(overrides, config_dir)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    del plain["choices"]
    set_in, comments = _read_sources(overrides, config_dir)
    comments |= dict(described(Root, plain))  # comments of files are for users' own classes
    for item in parse_overrides(overrides):
        for key in files.flatten({item.key_or_group: item.value()}):
            set_in[key] = COMMAND_LINE
    flat = files.flatten(plain)
    found = [
        Entry(key, _resolved(cfg, key, value), comments.get(key, ""), _source(key, set_in))
        for key, value in flat.items()
    ]
    return Settings(found, {key: text for key, text in comments.items() if key not in flat})


def option_settings(group: str, option: str, config_dir: Path | None = None) -> Settings:
    """The keys that an option of a group sets, those of the options it builds on among them."""
    if option not in options(group, config_dir):
        from agentrl_cli.config.suggestions import nearest

        known = options(group, config_dir)
        raise UserError(f"{group} '{option}' not found{nearest(option, known)}")
    found = settings([f"{group}={option}"], config_dir)
    own = [entry for entry in found.entries if entry.source.startswith(f"{group}/")]
    return Settings([e for e in own if not e.key.endswith("_target_")], found.node_comments)


def default_values(overrides: list[str]) -> dict[str, str]:
    """The keys that the files of the default or the chosen options set, each with the text of its
    value, "" where that is a node or refers to another; not composed, but quickly, for a shell that
    completes a word. `overrides` are those typed so far."""
    root = _file("config", None)
    found, chosen = _texts(root, ""), _default_options(root)
    chosen |= dict(text.split("=", 1) for text in overrides if text.count("=") == 1)
    for group, option in chosen.items():
        for file in _with_bases(group, option):
            found |= _texts(file, "" if _is_global(file) else f"{group}.")
    hidden = ("_target_", "defaults")
    return {key: text for key, text in found.items() if key.rpartition(".")[2] not in hidden}


def _texts(file: Path, node: str) -> dict[str, str]:
    """The plain values of a file by their keys, which begin with `node`; "" for any other value."""
    found = {}
    for key, value, _ in _keys(file):
        text = getattr(value, "value", "")
        is_word = isinstance(text, str) and re.fullmatch(r"[\w.+-]+", text)
        found[f"{node}{key}"] = text if is_word else ""
    return found


def _default_options(root: Path) -> dict[str, str]:
    """The options that config.yaml chooses, by group."""
    import yaml

    parts = yaml.safe_load(root.read_text(encoding="utf-8"))["defaults"]
    return {str(g): str(o) for part in parts if isinstance(part, dict) for g, o in part.items()}


def _is_global(file: Path) -> bool:
    """Whether a file sets keys of the root, not of its group's node."""
    return file.read_text(encoding="utf-8").startswith("# @package _global_")


def _with_bases(group: str, option: str) -> list[Path]:
    """The file of an option and those of the same group that it builds on; none for no option."""
    import yaml

    file = _file(f"{group}/{option}", None)
    if not file.is_file():
        return []
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    bases = content.get("defaults", []) if isinstance(content, dict) else []
    names = [name for name in bases if isinstance(name, str) and name not in ("_self_", option)]
    return [found for name in names for found in _with_bases(group, name)] + [file]


def render(found: Settings) -> list[str]:
    """The settings as YAML, each with its comment and its source behind it."""
    lines: list[str] = []
    above: list[str] = []
    for entry in found.entries:
        *path, name = entry.key.split(".")
        shared = 0
        while shared < min(len(above), len(path)) and above[shared] == path[shared]:
            shared += 1
        for depth in range(shared, len(path)):
            about = found.node_comments.get(".".join(path[: depth + 1]), "")
            lines.append(_line(f"{'  ' * depth}{path[depth]}:", about))
        about = f"{entry.comment} [{entry.source}]".strip()
        lines.append(_line(f"{'  ' * len(path)}{name}: {shown(entry.value)}", about))
        above = path
    return lines


def _line(text: str, about: str) -> str:
    return f"{text:<{LONGEST}}  # {about}" if about else text


def shown(value: Any) -> str:
    """A value as YAML in one line."""
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
            name = str(item.config_path)
            if name.startswith("hydra/"):
                continue
            if (file := _file(name, config_dir)).is_file():
                source, content = f"{name}.yaml", OmegaConf.load(file)
            elif section := loader.repository.load_config(name):
                source, content = section.provider, section.config
            else:
                continue
            values: Any = OmegaConf.to_container(content, resolve=False) or {}
            found.append(Part(name, item.package or "", values, source))
    return found


def _read_sources(
    overrides: list[str], config_dir: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """By key: the file that set it last, and the last comment that a file writes behind it."""
    set_in: dict[str, str] = {}
    comments: dict[str, str] = {}
    for part in parts(overrides, config_dir):
        prefix = f"{part.node}." if part.node else ""
        set_in |= {f"{prefix}{key}": part.file for key in files.flatten(part.values)}
        if (file := _file(part.name, config_dir)).is_file():
            found = {f"{prefix}{key}": comment for key, _, comment in _keys(file)}
            comments |= {key: comment for key, comment in found.items() if comment}
    return set_in, comments


def _file(name: str, config_dir: Path | None) -> Path:
    """The file of a name like `algo/grpo`, ours where there are two; one that is not there."""
    files_of_name = [folder / f"{name}.yaml" for folder in group_folders(config_dir)]
    return next(filter(files.is_file, files_of_name), files_of_name[0])


def _keys(file: Path) -> Iterator[tuple[str, Node, str]]:
    """Every key of a YAML file in dots, its value, and the comment behind it on its line."""
    import yaml

    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        yield from _keys_of(root, "", text.splitlines())


def _keys_of(node: Node, path: str, lines: list[str]) -> Iterator[tuple[str, Node, str]]:
    from yaml import MappingNode

    if not isinstance(node, MappingNode):
        return
    for name, value in node.value:
        key = f"{path}.{name.value}" if path else str(name.value)
        is_block = isinstance(value, MappingNode) and not value.flow_style
        end = name.end_mark if is_block else value.end_mark
        yield key, value, _comment_behind(lines, end.line, end.column)
        yield from _keys_of(value, key, lines)


def _comment_behind(lines: list[str], line: int, column: int) -> str:
    """The comment of a line behind a column, where its value has ended; "" where there is none."""
    rest = lines[line][column:] if line < len(lines) else ""
    head, mark, comment = rest.partition("#")
    return comment.strip() if mark and not head.strip(" :,") else ""


def _resolved(cfg: Any, key: str, value: Any) -> Any:
    """A value with what it refers to in its place; as it is written where that is not known yet."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        found = OmegaConf.select(cfg, key)
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    except OmegaConfBaseException:
        return value


def _source(key: str, set_in: dict[str, str]) -> str:
    """Where a key was set, or the node that holds it as a whole."""
    while key and key not in set_in:
        key = key.rpartition(".")[0]
    return set_in.get(key, "")
