"""Old names of presets, options, keys, metrics and classes; `old_names.json` holds the tables.

Stored configurations and metrics are read with the names of this version. The command line accepts
old presets and options, and refuses an old key with its new name. `agentrl reproduce` runs presets.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo_err

TABLES = json.loads((Path(__file__).parent / "old_names.json").read_text(encoding="utf-8"))
PRESETS: dict[str, str] = TABLES["presets"]  # name -> overrides
RECIPES = {"math": "arithmetic"}  # renamed recipes
PRESETS |= {
    name.replace(new, old, 1): overrides
    for old, new in RECIPES.items()
    for name, overrides in PRESETS.items()
    if name.startswith(f"{new}_")
}
GROUPS = ("recipe", "algo", "ablation")  # that a preset chooses
OPTIONS: dict[str, str] = TABLES["options"]  # removed option -> overrides
KEYS: dict[str, str] = TABLES["keys"]  # a renamed node comes before its keys
VALUES: dict[str, dict[str, Any]] = TABLES["values"]  # new key -> old value -> new value
METRICS: dict[str, str] = TABLES["metrics"]
TARGETS: dict[str, str] = TABLES["targets"]
DEFAULTS: dict[str, Any] = TABLES["defaults"]  # of keys that older versions did not have


def preset_overrides(name: str) -> list[str]:
    """Return the overrides that a preset name stands for."""
    return PRESETS[name].split()


def current_name(preset: str) -> str:
    """Return the name that a preset has now: math_nlac is arithmetic_nlac."""
    prefix, _, rest = preset.partition("_")
    return f"{RECIPES.get(prefix, prefix)}_{rest}"


def replace_old_names(overrides: list[str]) -> list[str]:
    """Return the overrides with old names replaced, and print each replacement once.

    An override of the user wins over a group that the preset chooses. Raises UserError for a sweep
    over several presets.
    """
    given = {text.partition("=")[0] for text in overrides}
    replaced: list[str] = []
    for text in overrides:
        group, _, name = text.partition("=")
        new = [text]
        if text in OPTIONS:
            new = OPTIONS[text].split()
        elif group == "experiment" and name in PRESETS:
            new = [t for t in preset_overrides(name) if t.partition("=")[0] not in given]
        elif group == "experiment" and PRESETS.keys() >= set(name.split(",")):
            line = f"'{text}' names several presets; sweep over recipe, algo and ablation instead"
            raise UserError(line, code="several-presets")
        if new != [text]:
            _print_once(text, " ".join(new))
        replaced += new
    return replaced


@cache
def _print_once(old: str, new: str) -> None:
    echo_err(f"{old} is now {new}")


def renamed_key(old: str) -> str | None:
    """Return the new name of a key, if it or the node that holds it has one."""
    head, _, tail = old.rpartition(".")
    if old in KEYS:
        return KEYS[old]
    parent = renamed_key(head) if head else None
    return f"{parent}.{tail}" if parent else None


def update_stored(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the keys, targets and options of this version."""
    cfg = _renamed_targets(stored)
    keys = KEYS
    turns = _node_at(cfg, ["env", "turns"])  # was a number or a mode
    if turns is not None and str(_node_at(cfg, ["env", "_target_"])).startswith("agentrl_cli."):
        keys = KEYS | {"env.turns": "env.turn_mode" if isinstance(turns, str) else "env.max_turns"}
    for old, new in keys.items():
        *path, name = old.split(".")
        if isinstance(node := _node_at(cfg, path), dict) and name in node:
            *new_path, new_name = new.split(".")
            _node_at(cfg, new_path, create=True)[new_name] = node.pop(name)
    for new, values in VALUES.items():
        *path, name = new.split(".")
        if isinstance(node := _node_at(cfg, path), dict) and isinstance(node.get(name), str):
            node[name] = values.get(node[name], node[name])
    for key, value in DEFAULTS.items():
        cfg.setdefault(key, value)
    advanced = _node_at(cfg, ["algo", "advanced"])
    if isinstance(advanced, dict) and "role_model" in advanced:  # of NLAC
        added = TABLES["nlac_defaults"]
        temperature = {"refine_temperature": advanced.get("role_temperature", 1.0)}
        for removed in ("successor_minibatch_tokens", "successor_tokens_per_step"):
            advanced.pop(removed, None)
        if str(_node_at(stored, ["algo", "_target_"])).endswith("MonteCarlo"):
            advanced["td_lambda"] = 1.0  # it was a class
        cfg["algo"] = {**added, **cfg["algo"]}
        cfg["algo"]["advanced"] = {**added["advanced"], **temperature, **advanced}
    choices = cfg.get("choices")
    if str(_node_at(cfg, ["algo", "_target_"])).endswith(".ArCHer"):
        _update_archer(cfg["algo"], choices)
    if isinstance(choices, dict):  # record the options of this version that compose the same
        if (preset := str(choices.get("experiment"))) in PRESETS:
            chosen = dict(text.split("=") for text in preset_overrides(preset))
            choices |= {group: chosen.get(group) for group in GROUPS}
            del choices["experiment"]
        choices.pop("wording", None)
        if choices.get("rollout") in ("solve", "serve", "browse"):
            choices["rollout"] = "play"
        if choices.get("env") == "math" and not _node_at(cfg, ["env", "data"]):
            choices["env"] = "arithmetic"  # the name of the built-in problems since
    return cfg


def _update_archer(algo: dict[str, Any], choices: Any) -> None:
    """Add the settings that older versions did not have, and choose archer_small, which has them
    so. `archer` had another meaning then."""
    added = TABLES["archer_defaults"]
    if not added.keys() <= algo.keys():
        algo |= {**added, **algo}
        if isinstance(choices, dict) and choices.get("algo") == "archer":
            choices["algo"] = "archer_small"


def _renamed_targets(node: Any) -> Any:
    if isinstance(node, list):
        return [_renamed_targets(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _renamed_targets(value) for key, value in node.items()}
    if isinstance(target := node.get("_target_"), str):
        node["_target_"] = TARGETS.get(target, target)
    return node


def _node_at(node: Any, path: list[str], *, create: bool = False) -> Any:
    for part in path:
        if not isinstance(node, dict):
            return None
        node = node.setdefault(part, {}) if create else node.get(part)
    return node


def renamed_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics.jsonl with the new names of its metrics."""
    row = {METRICS.get(name, name): value for name, value in row.items()}
    informative = row.pop("policy/informative_episodes", None)
    return row if informative is None else row | {"reward/frac_zero_std": 1 - informative}
