"""Old names of presets and of options: `experiment=twentyq_k1` is now `recipe=twentyq algo=nlac
ablation=k1`. The names still work on the command line, and `agentrl reproduce` takes them."""

from __future__ import annotations

from functools import cache
from itertools import product

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo_err

GROUPS = ("recipe", "algo", "ablation")
ALGOS = (
    "archer", "dpo", "grpo", "nlac", "ppo", "rft", "self_ac", "sft", "stepagent_implicit",
    "stepagent_inverse",
)  # fmt: skip
CONTROLS = (
    "frozen_critic", "shuffled_critiques", "shuffled_outcomes", "empty_critiques", "majority",
)  # fmt: skip
ABLATIONS = (
    "guarded", "k1", "k8", "m2", "monte_carlo", "nlql", "nlrl", "on_policy", "self_distillation",
    "shared_critic",
)  # fmt: skip
NAMED_OTHERWISE = {  # algorithm and ablation; every other ablation above is one of NLAC
    "nlac_paper": ("nlac", "paper"),
    "self_ac_slides": ("self_ac", "slides"),
    "own_play": ("sft", "own_play"),
    "plain_farewell": ("nlac", "plain_final_hint"),
    "graded_reward": ("grpo", "graded_reward"),
    "ppo_from_sft": ("ppo", "from_sft"),
    "rft_from_sft": ("rft", "from_sft"),
    "stepagent_environment": ("stepagent_inverse", "environment"),
}
EVERYWHERE = (*ALGOS, *CONTROLS, "nlac_paper", "self_ac_slides")
SHIPPED = {
    "twentyq": (*EVERYWHERE, *ABLATIONS, *NAMED_OTHERWISE, "refined"),
    "math": (*EVERYWHERE, *ABLATIONS),
    "arithmetic": (*EVERYWHERE, *ABLATIONS),
    "tau_mini": EVERYWHERE,
    "wiki": EVERYWHERE,
    "paper_twentyq": (
        "archer", "grpo", "monte_carlo", "nlac", "nlql", "nlrl", "ppo", "rft", "self_ac",
        "self_distillation",
    ),
}  # fmt: skip
RECIPES = {"math": "arithmetic"}  # recipes whose name has changed since
OPTIONS = {  # removed groups of options, with the values that they set
    "rollout=solve": ["rollout.max_new_tokens=96"],
    "rollout=serve": ["rollout.max_new_tokens=32", "rollout.max_seq_len=1536"],
    "rollout=browse": ["rollout.max_new_tokens=48", "rollout.max_seq_len=1536"],
    **{
        f"wording={name}": [f"prompts.wording={name}"]
        for name in ("episode", "game", "problem", "search", "service")
    },
}


def _preset(recipe: str, name: str) -> tuple[str, str, str | None]:
    algo, ablation = (name, None) if name in ALGOS else NAMED_OTHERWISE.get(name, ("nlac", name))
    return recipe, algo, ablation


PRESETS = {
    f"{prefix}_{name}": _preset(RECIPES.get(prefix, prefix), name)
    for prefix, names in SHIPPED.items()
    for name in names
} | {"paper_twentyq_nlac_24gb": ("paper_twentyq_24gb", "nlac", None)}


def preset_overrides(name: str) -> list[str]:
    """Return the overrides that a preset name stands for."""
    chosen = zip(GROUPS, PRESETS[name], strict=True)
    return [f"{group}={option}" for group, option in chosen if option]


def current_name(preset: str) -> str:
    """Return the name that a preset has now: math_nlac is arithmetic_nlac."""
    prefix, _, rest = preset.partition("_")
    return f"{RECIPES.get(prefix, prefix)}_{rest}"


def replace_old_names(overrides: list[str]) -> list[str]:
    """Return the overrides with old names replaced, and print each replacement once.

    An override of the user wins over a group that the preset chooses. In a sweep
    `experiment=A,B` becomes a choice of several options, if these cover all combinations.
    """
    given = {text.partition("=")[0] for text in overrides}
    replaced: list[str] = []
    for text in overrides:
        group, _, value = text.partition("=")
        names = value.split(",")
        if text in OPTIONS:
            new = OPTIONS[text]
        elif group == "experiment" and PRESETS.keys() >= set(names):
            new = [t for t in _choices(names) if t.partition("=")[0] not in given]
        else:
            replaced.append(text)
            continue
        _print_once(text, " ".join(new))
        replaced += new
    return replaced


def _choices(names: list[str]) -> list[str]:
    presets = [PRESETS[name] for name in names]
    options = [list(dict.fromkeys(part)) for part in zip(*presets, strict=True)]
    if {*product(*options)} != {*presets} or (None in options[2] and len(options[2]) > 1):
        line = f"experiment={','.join(names)} is not a grid of recipes, algorithms and ablations"
        raise UserError(f"{line}; start a sweep for each", code="preset-grid")
    return [
        f"{group}={','.join(map(str, part))}"
        for group, part in zip(GROUPS, options, strict=True)
        if part != [None]
    ]


@cache
def _print_once(old: str, new: str) -> None:
    echo_err(f"{old} is now {new}")
