"""What a person reads when a run ends: base against trained, its folder, the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_cli.run import Run
from agentrl_cli.types import Episode

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.assemble import Parts

SHARES = ("greedy_success", "invalid", "repeated")


def final_table(run: Run) -> str:
    """Base and trained side by side, then where the run lies and what to do next."""
    rows = [row for row in run.metrics() if any(key.startswith("eval/") for key in row)]
    lines = comparison(rows[0], rows[-1]) if rows else []
    return "\n".join([*lines, f"run {run.folder}", f"next: agentrl show {run.argument}"])


def comparison(base: dict[str, Any], trained: dict[str, Any]) -> list[str]:
    """One line for each measure of each split; success with its 95 % interval clustered by task."""
    splits = [key[5:-12] for key in trained if key.endswith("_success_low")]
    lines = [f"{'':<24} {'base':>18} {'trained':>18}"]
    for split in splits:
        values = [_interval(row, split) for row in (base, trained)]
        lines.append(f"{split + ' success':<24} {values[0]:>18} {values[1]:>18}")
        for name, form in (("turns_to_success", ".1f"), *((share, ".1%") for share in SHARES)):
            key = f"eval/{split}_{name}"
            if key in trained and key in base:
                label = f"{split} {name.replace('_', ' ')}"
                lines.append(f"{label:<24} {base[key]:>18{form}} {trained[key]:>18{form}}")
    return lines


def _interval(row: dict[str, Any], split: str) -> str:
    mean, low, high = (row[f"eval/{split}_success{end}"] for end in ("", "_low", "_high"))
    return f"{mean:.1%} [{low:.1%}, {high:.1%}]".replace("%]", "]").replace("%, ", ", ")


def dry_table(cfg: DictConfig, parts: Parts, episode: Episode) -> str:
    """Derived sizes, predicted memory, and the episode that was played."""
    module = parts.models.module("policy")
    weights = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for _, p in parts.models.trainable("policy"))
    per_step = parts.collector.count(parts.algo.group_size) if parts.algo.plays else 0
    played = f"{len(episode.turns)} turns, {episode.tokens} tokens, reward {episode.reward:g}"
    rows = {
        "algorithm": cfg.choices.algo,
        "models": ", ".join(f"{name} ({spec.kind})" for name, spec in parts.algo.models().items()),
        "parameters": f"{weights:,}, of them trained {trained:,}",
        "episodes a step": per_step,
        "episodes in all": per_step * cfg.steps,
        "predicted peak memory": f"{predicted_bytes(parts) / 2**30:.2f} GiB",
        "one episode": played,
    }
    return "\n".join(f"{name:<22} {value}" for name, value in rows.items())


def predicted_bytes(parts: Parts) -> float:
    """Weights of every model, gradients and two moments of what is trained, activations of a
    micro-batch, and the key/value cache of each model that generates. A rule of thumb: activations
    are taken as 34 bytes per token, layer and unit of width (Korthikanti et al. 2022, without the
    attention term)."""
    module = parts.models.module("policy")
    config = module.config.get_text_config()
    stored = sum(p.numel() * p.element_size() for p in module.parameters())
    copies = len(parts.models.names) if parts.models.config.lora is None else 1
    trained = sum(p.numel() for name in parts.models.names for _, p in parts.models.trainable(name))
    wide = config.num_hidden_layers * config.hidden_size
    activations = 34 * parts.learner.tokens_per_batch * wide
    caches = sum(spec.generates for spec in parts.algo.models().values())
    cached = caches * parts.generator.cache_bytes()
    return stored * copies + 12 * trained + activations + cached
