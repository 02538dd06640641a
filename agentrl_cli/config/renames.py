"""Renamed keys, metrics, targets and options. Stored configurations and metrics of older versions
are read with their new names; on the command line an old key is refused with the new one."""

from __future__ import annotations

from typing import Any

from agentrl_cli.config.presets import GROUPS, PRESETS

# Old key in dots -> new key. A renamed node comes before its keys.
KEYS: dict[str, str] = {
    "save_minutes": "save_interval_minutes",
    "keep": "save_best",
    "data.skip_bad": "data.skip_invalid",
    "model.request.price_read": "model.request.input_price",
    "model.request.price_written": "model.request.output_price",
    "hardware.tokens_per_batch": "hardware.microbatch_tokens",
    "hardware.generator.max_logprob_gap": "hardware.generator.max_logp_diff",
    "rollout.max_tokens": "rollout.max_new_tokens",
    "rollout.max_context": "rollout.max_seq_len",
    "rollout.workers": "rollout.env_workers",
    "rollout.episodes_at_once": "rollout.max_concurrent_episodes",
    "env.farewell": "env.final_hint",
    "env.reading": "env.parser",
    **{
        f"algo.{node}{old}": f"algo.{node}{new}"
        for node in ("", "ppo.", "advanced.")
        for old, new in {
            "tokens_per_step": "minibatch_tokens",
            "clip": "clip_eps",
            "discount": "gamma",
            "imitation_coef": "nll_coef",
            "episodes_per_group": "group_size",
        }.items()
    },
    **{
        f"algo.{node}.clip_norm": f"algo.{node}.max_grad_norm"
        for node in ("optimizer", "critic_optimizer", "discriminator_optimizer", "ppo.optimizer")
    },
    "algo.fragments_per_update": "algo.expert_states_per_update",
    "algo.attempts": "algo.num_samples",
    "algo.improvement": "algo.policy_target",
    "algo.candidates": "algo.num_candidates",
    "algo.forecasts": "algo.num_forecasts",
    "algo.rounds": "algo.num_refinements",
    "algo.choice_temperature": "algo.selection_temperature",
    "algo.critic": "algo.separate_critic",
    "algo.compare": "algo.show_alternatives",
    "algo.gate": "algo.require_optimal",
    "algo.guard": "algo.improvement_check",
    "algo.improvement_check.lessons": "algo.improvement_check.num_targets",
    "algo.improvement_check.probes": "algo.improvement_check.num_rollouts",
    "algo.improvement_check.memory": "algo.improvement_check.window",
    "algo.min_readable": "algo.min_parse_rate",
    "algo.prompts.reading": "algo.prompts.parser",
    "algo.advanced.trace": "algo.advanced.td_lambda",
    "algo.advanced.role_weights": "algo.advanced.role_model",
    "algo.advanced.control": "algo.advanced.ablation",
    "algo.advanced.successor_tokens_per_step": "algo.advanced.successor_minibatch_tokens",
    "algo.advanced.monitored_states": "algo.diagnostics.num_states",
    "algo.advanced.monitored_actions": "algo.diagnostics.num_actions",
    "algo.advanced.monitored_forecasts": "algo.diagnostics.num_forecasts",
    "algo.advanced.probes": "algo.diagnostics.num_rollouts",
}
# New key -> old value -> new value.
VALUES: dict[str, dict[Any, Any]] = {
    "save_best": {"best": True, "last": False},
    "algo.policy_target": {
        "refinement": "refined",
        "choice": "best_of_n",
        "contrast": "advantage_weighted",
        "critique": "best_critique",
    },
    "algo.separate_critic": {"own": True, "shared": False},
    "algo.prompts.parser": {"exact": "strict", "tolerant": "lenient"},
    "algo.reward": {"unlike_agent": "neg_log_d", "like_expert": "log_one_minus_d"},
}
# Old metric -> new metric.
METRICS: dict[str, str] = {
    "policy/logprob_gap": "sampling/logp_diff_mean",
    "policy/logprob_gap_max": "sampling/logp_diff_max",
    "policy/kl_from_start": "policy/kl_ref",
    "generator/logprob_gap": "generator/logp_diff_mean",
    "generator/logprob_gap_max": "generator/logp_diff_max",
    "episodes/failed": "episodes/error_rate",
    "episodes/context": "episodes/context_overflow",
    "critic/optimism": "critic/value_bias",
    "nlac/optimism": "nlac/value_bias",
    "ledger/turns": "critique/turns",
    "ledger/faulty": "critique/faulty",
    "ledger/hits": "critique/recall",
    "ledger/false_alarms": "critique/false_positive_rate",
    "ledger/mended": "refinement/fix_rate",
    "ledger/spoiled": "refinement/break_rate",
    "ledger/lesson_share": "refinement/target_share",
    "ledger/lesson_gain": "refinement/target_gain",
    "ledger/lesson_gain_low": "refinement/target_gain_low",
    "guard/gain": "improvement_check/gain",
    "guard/low": "improvement_check/low",
    "guard/open": "improvement_check/open",
    "guard/episodes": "improvement_check/episodes",
    "stepagent/fragments": "stepagent/expert_states",
    "time/clock": "time/timestamp",
    **{
        f"{algo}/left_out_{reason}": f"{algo}/skipped_{reason}"
        for algo in ("ppo", "archer", "self_ac")
        for reason in ("broken", "empty", "long")
    },
}
TARGETS: dict[str, str] = {"agentrl_cli.runs.FilesOnly": "agentrl_cli.runs.JsonlLogger"}
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
    for old, new in _keys_of(cfg).items():
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
    if str(_node_at(cfg, ["algo", "_target_"])).endswith("NLAC"):
        cfg["algo"].setdefault("min_parse_rate", 0.0)
    env, choices = cfg.get("env"), cfg.get("choices")
    if isinstance(choices, dict):
        _update_choices(choices, env if isinstance(env, dict) else {})
    return cfg


def _keys_of(cfg: dict[str, Any]) -> dict[str, str]:
    """Return the renamed keys, with that of `env.turns`, which was a number or a mode."""
    turns = _node_at(cfg, ["env", "turns"])
    target = str(_node_at(cfg, ["env", "_target_"]))
    if turns is None or not target.startswith("agentrl_cli."):
        return KEYS
    return KEYS | {"env.turns": "env.turn_mode" if isinstance(turns, str) else "env.max_turns"}


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
    row = {METRICS.get(name, name): value for name, value in row.items()}
    informative = row.pop("policy/informative_episodes", None)
    return row if informative is None else row | {"reward/frac_zero_std": 1 - informative}
