"""Complete groups, options, keys and runs in a shell; `agentrl --install-completion` enables it.
Nothing is composed here, because a completion must be fast."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer import Context


def group_names(incomplete: str) -> list[str]:
    """Complete the name of a group."""
    from agentrl_cli.config.compose import groups

    return _beginning(incomplete, groups())


def option_names(ctx: Context, incomplete: str) -> list[str]:
    """Complete an option of the group given before."""
    return _beginning(incomplete, _options(str(ctx.params.get("group"))))


def runs(incomplete: str) -> list[str]:
    """Complete `last`, a run in `runs`, or a folder of runs."""
    root = Path("runs")
    names = ["last", *sorted(file.parent.name for file in root.glob("*/meta.json"))]
    inside = sorted(str(file.parent) for file in root.glob("*/*/meta.json"))
    folders = sorted({str(Path(name).parent) for name in inside})
    return _beginning(incomplete, [*folders, *inside] if "/" in incomplete else [*names, *folders])


def overrides(ctx: Context, incomplete: str) -> list[str]:
    """Complete a group or a key, and after `=` an option or the default value. Bash splits
    `algo=gr` into three words and replaces the last one; for `algo=` this is the `=`."""
    typed = _typed(ctx)
    words, number = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "0")
    if words.split("\n")[int(number) :] == ["="]:  # bash completes a word that is only `=`
        return _choices(typed[-1], typed[:-1]) if typed else []
    if len(typed) > 1 and typed[-1] == "=":
        return _beginning(incomplete, _choices(typed[-2], typed[:-2]))
    key, is_chosen, option = incomplete.partition("=")
    if is_chosen:
        return [f"{key}={name}" for name in _beginning(option, _choices(key, typed))]
    return _keys(incomplete, typed)


def run_or_overrides(ctx: Context, incomplete: str) -> list[str]:
    """Complete a run as the first argument, and overrides."""
    first = [] if _typed(ctx) else runs(incomplete)
    return [*first, *overrides(ctx, incomplete)]


def _typed(ctx: Context) -> list[str]:
    """Return the complete words of the command's arguments."""
    return [str(word) for word in ctx.params.get("overrides") or ctx.params.get("what") or ()]


def _keys(incomplete: str, typed: list[str]) -> list[str]:
    """Complete keys of the node before the last dot, or groups and root keys, each up to `=` or the
    next dot. A shell appends a space to a single word, so this is completed further."""
    from agentrl_cli.config.compose import groups

    values, depth = _default_values(typed), incomplete.count(".")
    nodes = {key.rpartition(".")[0] for key in values}
    here = [key for key in values if key.count(".") == depth]
    words = [f"{key}." if key in nodes else f"{key}=" for key in here]
    if not depth:
        words += [f"{name}=" for name in groups()]
        words += [f"{name}." for name in groups() if name in nodes]
    words = _beginning(incomplete, words)
    if len(words) != 1:
        return words
    if words[0].endswith("."):
        return _keys(words[0], typed)
    return [*words, *(f"{words[0]}{choice}" for choice in _choices(words[0][:-1], typed))]


def _choices(key: str, typed: list[str]) -> list[str]:
    """Return the options of a group, or the default value of a key."""
    value = _default_values(typed).get(key)
    return _options(key) or ([value] if value else [])


def _default_values(typed: list[str]) -> dict[str, str]:
    """Return the keys of the default options, or of those that are typed already, each with the
    text of its value ("" for a node or an interpolation)."""
    from agentrl_cli.config.compose import conf_folder, read_yaml, with_bases

    found: dict[str, str] = {}

    def add(node: dict[str, Any], path: str) -> None:
        for name, value in node.items():
            if name not in ("_target_", "defaults"):
                text = value if isinstance(value, str) else json.dumps(value)
                found[f"{path}{name}"] = text if re.fullmatch(r"[\w.+-]+", text) else ""
                if isinstance(value, dict):
                    add(value, f"{path}{name}.")

    root = conf_folder() / "config.yaml"
    content = read_yaml(root)
    chosen: dict[str, str] = {}
    for part in content["defaults"]:
        chosen |= part if isinstance(part, dict) else {}
    words = " ".join(typed).replace(" = ", "=").split()
    chosen |= dict(word.split("=", 1) for word in words if word.count("=") == 1)
    add(content, "")
    for group, option in chosen.items():
        file = root.with_name(group) / f"{option}.yaml"
        for part in with_bases(file) if file.is_file() else ():
            is_global = part.read_text(encoding="utf-8").startswith("# @package _global_")
            add(read_yaml(part), "" if is_global else f"{group}.")
    return found


def _options(group: str) -> list[str]:
    from agentrl_cli.config.compose import groups, options

    return sorted(options(group)) if group in groups() else []


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
