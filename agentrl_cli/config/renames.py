"""Renamed keys, metrics, targets and options. Stored configurations and metrics of older versions
are read with their new names; on the command line an old key is refused with the new one."""

from __future__ import annotations

from typing import Any

from agentrl_cli.config.presets import GROUPS, PRESETS

KEYS: dict[str, str] = {}  # old key in dots -> new key, such as "algo.clip": "algo.clip_eps"
VALUES: dict[str, dict[Any, Any]] = {}  # new key -> old value -> new value
METRICS: dict[str, str] = {}  # old metric -> new metric
TARGETS: dict[str, str] = {}  # old target in full -> new target
ADDED = {
    "save_interval_minutes": 0.0,
    "save_best": False,
}  # later keys


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
    for old, new in KEYS.items():
        *path, name = old.split(".")
        if isinstance(node := _node_at(cfg, path), dict) and name in node:
            *new_path, new_name = new.split(".")
            _node_at(cfg, new_path, create=True)[new_name] = node.pop(name)
    for new, values in VALUES.items():
        *path, name = new.split(".")
        if isinstance(node := _node_at(cfg, path), dict) and isinstance(node.get(name), str | int):
            node[name] = values.get(node[name], node[name])
    for key, value in ADDED.items():
        cfg.setdefault(key, value)
    env, choices = cfg.get("env"), cfg.get("choices")
    if isinstance(choices, dict):
        _update_choices(choices, env if isinstance(env, dict) else {})
    return cfg


def _update_choices(choices: dict[str, Any], env: dict[str, Any]) -> None:
    """Record the options of this version that compose the same."""
    if preset := PRESETS.get(str(choices.get("experiment"))):
        choices |= dict(zip(GROUPS, preset, strict=True))
        del choices["experiment"]
    choices.pop("wording", None)
    if choices.get("rollout") in ("solve", "serve", "browse"):
        choices["rollout"] = "play"
    if choices.get("env") == "math" and not env.get("data"):
        choices["env"] = "arithmetic"  # the name of the built-in problems since


def _renamed_targets(node: Any) -> Any:
    if isinstance(node, list):
        return [_renamed_targets(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: TARGETS.get(value, value) if key == "_target_" and isinstance(value, str)
        else _renamed_targets(value)
        for key, value in node.items()
    }  # fmt: skip


def _node_at(node: Any, path: list[str], *, create: bool = False) -> Any:
    for part in path:
        if not isinstance(node, dict):
            return None
        node = node.setdefault(part, {}) if create else node.get(part)
    return node


def renamed_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics.jsonl with the new names of its metrics."""
    return {METRICS.get(name, name): value for name, value in row.items()} if METRICS else row
