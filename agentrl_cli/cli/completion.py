"""What a shell offers behind the beginning of a word: groups, options, keys, runs. `agentrl
--install-completion` sets a shell up. Nothing is composed here, so that the answer is quick."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from typer import Context


def group_names(incomplete: str) -> list[str]:
    """The groups that begin so."""
    from agentrl_cli.config.groups import groups

    return _beginning(incomplete, groups())


def option_names(ctx: Context, incomplete: str) -> list[str]:
    """The options, that begin so, of the group named before."""
    return _beginning(incomplete, _options(str(ctx.params.get("group"))))


def runs(incomplete: str) -> list[str]:
    """The runs in `runs`, the folders with runs in them, and `last`."""
    root = Path("runs")
    names = ["last", *sorted(file.parent.name for file in root.glob("*/meta.json"))]
    inside = sorted(str(file.parent) for file in root.glob("*/*/meta.json"))
    folders = sorted({str(Path(name).parent) for name in inside})
    is_path = "/" in incomplete
    return _beginning(incomplete, [*folders, *inside] if is_path else [*names, *folders])


def overrides(ctx: Context, incomplete: str) -> list[str]:
    """Groups and keys that begin so, and behind `=` the options of a group or the value that a key
    has by default. Bash takes `algo=gr` for three words, of which it replaces the last, and leaves
    the `=` where nothing is typed behind it."""
    typed = _typed(ctx)
    if _is_behind_equals():
        return _choices(typed[-1], typed[:-1]) if typed else []
    if len(typed) > 1 and typed[-1] == "=":
        return _beginning(incomplete, _choices(typed[-2], typed[:-2]))
    key, is_chosen, option = incomplete.partition("=")
    if is_chosen:
        return [f"{key}={name}" for name in _beginning(option, _choices(key, typed))]
    return _further(_beginning(incomplete, _words(typed, incomplete)), typed)


def run_or_overrides(ctx: Context, incomplete: str) -> list[str]:
    """What `agentrl eval` takes: a run first, or else overrides."""
    first = [] if _typed(ctx) else runs(incomplete)
    return [*first, *overrides(ctx, incomplete)]


def _typed(ctx: Context) -> list[str]:
    """The words of the command's list of arguments that are complete."""
    return [str(word) for word in ctx.params.get("overrides") or ctx.params.get("what") or ()]


def _is_behind_equals() -> bool:
    """Whether bash asks for what follows an `=`, which it hands on as a word of its own."""
    words, number = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "0")
    return words.split("\n")[int(number) :] == ["="]


def _words(typed: list[str], incomplete: str) -> list[str]:
    """Groups and the keys of the root, or behind a dot the keys of its node, each as far as `=` or
    the next dot."""
    from agentrl_cli.config.groups import groups

    keys, depth = _default_values(typed), incomplete.count(".")
    nodes = {key.rpartition(".")[0] for key in keys}
    here = [key for key in keys if key.count(".") == depth]
    words = [f"{key}." if key in nodes else f"{key}=" for key in here]
    if depth:
        return words
    names = [name for name in groups() if name in nodes]
    return [*words, *(f"{name}=" for name in groups()), *(f"{name}." for name in names)]


def _further(words: list[str], typed: list[str]) -> list[str]:
    """The words; of a single one that has to go on also how, or else a shell ends it by a space."""
    if len(words) != 1 or words[0][-1] not in "=.":
        return words
    if words[0].endswith("."):
        return _further(_beginning(words[0], _words(typed, words[0])), typed)
    return [*words, *(f"{words[0]}{choice}" for choice in _choices(words[0][:-1], typed))]


def _choices(key: str, typed: list[str]) -> list[str]:
    """The options of a group, or the value that a key has by default."""
    value = _default_values(typed).get(key)
    return _options(key) or ([value] if value else [])


def _default_values(typed: list[str]) -> dict[str, str]:
    """Each key with the text of its value, by the options that are typed already."""
    from agentrl_cli.config.comments import default_values

    return default_values(" ".join(typed).replace(" = ", "=").split())


def _options(group: str) -> list[str]:
    from agentrl_cli.config.groups import groups, options

    return sorted(options(group)) if group in groups() else []


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
