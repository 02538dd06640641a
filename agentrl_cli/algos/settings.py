"""Settings of the algorithms: one dataclass each, validated before anything heavy is imported.

This module imports neither torch nor transformers. Every field is `Annotated` with its type and a
pydantic `Field` that holds its limits and the description that `agentrl config` prints. Default
values live in `conf/algo/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_fraction
from agentrl_cli.models.specs import OptimizerSpec, check_limits

# --- optimizers and shared parts ---

Clip = Annotated[float, Field(ge=0, description="Clip the ratio to 1 - clip and 1 + clip.")]
KLCoef = Annotated[
    float, Field(ge=0, description="Weight of the KL from the initial policy. 0: no reference.")
]
Discount = Annotated[float, Field(ge=0, le=1, description="Discount factor of one step.")]
GAELambda = Annotated[
    float, Field(ge=0, le=1, description="Lambda of GAE. 0: one-step TD. 1: return minus value.")
]
CriticWarmup = Annotated[int, Field(ge=0, description="First updates that train only the critic.")]
NormaliseAdvantages = Annotated[
    bool, Field(description="Scale advantages to mean 0 and deviation 1 over each update.")
]
TokensPerStep = Annotated[
    int, Field(ge=0, description="Trained tokens of one optimizer step. 0: one step per epoch.")
]
Beta = Annotated[float, Field(ge=0, description="Inverse temperature of the preference.")]
ImitationCoef = Annotated[
    float, Field(ge=0, description="Weight of the expert action's NLL per token in the loss.")
]


@dataclass(kw_only=True)
class Settings:
    """Base of all settings. Limits also hold for objects that are built in Python."""

    def __post_init__(self) -> None:
        check_limits(self)
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for values that contradict each other."""


@dataclass(kw_only=True)
class TrainingConfig(Settings):
    """Settings of the optimization that most algorithms share."""

    epochs: Annotated[int, Field(ge=1, description="Passes over the samples of an update.")]
    minibatch_tokens: TokensPerStep
    optimizer: Annotated[OptimizerSpec, Field(description="AdamW and its learning rate schedule.")]


# --- SFT, RFT ---


@dataclass(kw_only=True)
class SFTConfig(TrainingConfig):
    """Settings of SFT, and of RFT, which is SFT with `only_success`."""

    only_success: Annotated[
        bool, Field(description="Train on the policy's successes instead of demonstrations.")
    ]


# --- GRPO ---


@dataclass(kw_only=True)
class GRPOConfig(TrainingConfig):
    """Settings of GRPO."""

    group_size: Annotated[int, Field(ge=2, description="Episodes of one task per group.")]
    normalise_advantages: Annotated[
        bool, Field(description="Divide advantages by the standard deviation of the group.")
    ]
    clip_eps: Clip
    kl_coef: KLCoef


# --- PPO ---


@dataclass(kw_only=True)
class PPOConfig(TrainingConfig):
    """Settings of PPO."""

    level: Annotated[Literal["turn", "token"], Field(description="One step of GAE.")]
    gamma: Discount
    gae_lambda: GAELambda
    normalise_advantages: NormaliseAdvantages
    clip_eps: Clip
    value_clip: Annotated[
        float, Field(ge=0, description="Clip the change of a value to +- this. 0: no clipping.")
    ]
    value_coef: Annotated[float, Field(ge=0, description="Weight of the value loss.")]
    critic_warmup: CriticWarmup
    kl_coef: KLCoef
    entropy_coef: Annotated[float, Field(ge=0, description="Weight of the entropy bonus.")]


# --- ArCHer ---


@dataclass(kw_only=True)
class ArCHerConfig(Settings):
    """Settings of ArCHer."""

    episodes_per_update: Annotated[
        int, Field(ge=1, description="Replayed episodes of a critic update (one optimizer step).")
    ]
    critic_updates: Annotated[
        int, Field(ge=1, description="Critic updates per policy update. Each moves the target.")
    ]
    critic_warmup: CriticWarmup
    buffer_size: Annotated[int, Field(ge=1, description="Episodes in the replay buffer.")]
    action: Annotated[
        Literal["fresh", "stored"],
        Field(description="Target of V. fresh: Q of a new action, as in the paper. stored: of the "
              "replayed one."),
    ]  # fmt: skip
    gamma: Discount
    ema_decay: Annotated[
        float, Field(ge=0, le=1, description="Share of its weights that the target keeps.")
    ]
    normalise_advantages: NormaliseAdvantages
    clip_eps: Clip
    actor_epochs: Annotated[int, Field(ge=1, description="Passes over the new episodes.")]
    minibatch_tokens: TokensPerStep
    optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the policy.")]
    critic_optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the critic.")]


# --- DPO ---


@dataclass(kw_only=True)
class DPOConfig(TrainingConfig):
    """Settings of DPO."""

    beta: Beta
    nll_coef: ImitationCoef
    reference: Annotated[
        Literal["start", "iteration"],
        Field(description="Reference: the initial policy, or the policy before each update."),
    ]


# --- NLAC ---

NLAC_PLACEHOLDER = re.compile(r"\{(\w+)\}")  # of a prompt
NLAC_PLACEHOLDERS = {  # by prompt, the placeholders that it may contain
    "forecast": (),
    "backup": ("response", "forecast"),
    "evaluate": ("forecasts", "others"),
    "refine": ("critique",),
    "refine_by_rollouts": ("rollouts",),
    "aggregate": ("response", "rollouts"),
    "terminal": ("response", "outcome"),
    "frame": ("instruction",),
}


@dataclass(kw_only=True)
class NLACPromptsConfig:
    """Instructions of the roles, each sent as one message after the interaction so far. Words in
    braces, such as `{response}`, are replaced."""

    forecast: Annotated[str, Field(description="Successor: forecast how the episode continues.")]
    backup: Annotated[
        str, Field(description="Backup: write a forecast from {response} and the next {forecast}.")
    ]
    evaluate: Annotated[
        str, Field(description="Evaluator: critique an action by its {forecasts}, given {others}.")
    ]
    refine: Annotated[str, Field(description="Refiner: rewrite an action by its {critique}.")]
    refine_by_rollouts: Annotated[
        str, Field(description="Refiner of NLACSelfDistillation: rewrite by {rollouts}.")
    ]
    aggregate: Annotated[
        str, Field(description="Backup of NLRL: summarize {rollouts} that follow {response}.")
    ]
    terminal: Annotated[
        str, Field(description="Target of an episode's last turn: its {response} and {outcome}.")
    ]
    parser: Annotated[
        Literal["strict", "lenient"],
        Field(
            description="How role texts are parsed: the trained form only, or as real models write."
        ),
    ] = "strict"
    speaker: Annotated[
        Literal["user", "system"], Field(description="Sender of the instructions.")
    ] = "user"
    frame: Annotated[
        str,
        Field(description="Wraps an {instruction} if the template allows no message of `speaker`."),
    ] = "{instruction}"

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for an unknown placeholder and for a frame without its instruction."""
        for prompt, known in NLAC_PLACEHOLDERS.items():
            for name in NLAC_PLACEHOLDER.findall(vars(self)[prompt]):
                if name not in known:
                    choices = ", ".join(known) or "none"
                    line = f"prompts.{prompt} has the unknown placeholder '{name}'"
                    raise UserError(f"{line}; it can have: {choices}", code="unknown-placeholder")
        if "{instruction}" not in self.frame:
            line = "prompts.frame does not contain '{instruction}'; add it"
            raise UserError(line, code="missing-placeholder")


@dataclass(frozen=True, kw_only=True)
class NLACImprovementCheckConfig:
    """The improvement check: the policy trains only while its training targets are measurably
    better than its own play."""

    every: Annotated[
        int | None, Field(ge=1, description="Updates between measurements; null: no check.")
    ]
    num_targets: Annotated[int, Field(ge=8, description="Training targets of each measurement.")]
    num_rollouts: Annotated[
        int, Field(ge=1, description="Rollouts of each target, and of own play from its state.")
    ]
    window: Annotated[int, Field(ge=1, description="Latest measurements that count.")]

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for a value out of range."""
        require_at_least(1, every=1 if self.every is None else self.every)
        require_at_least(1, num_rollouts=self.num_rollouts, window=self.window)
        require_at_least(8, num_targets=self.num_targets)


@dataclass(frozen=True, kw_only=True)
class NLACAdvancedConfig:
    """Settings of NLAC that rarely change."""

    ema_decay: Annotated[
        float, Field(ge=0, le=1, description="Share of its weights that the target model keeps.")
    ]
    td_lambda: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Probability that a chain of backups starts one played turn later "
            "(as λ of TD(λ)); 0: a single backup, 1: from the end of the episode.",
        ),
    ]
    priority_exponent: Annotated[
        float,
        Field(
            ge=0,
            description="Exponent of the replay priorities, which are target losses; 0: uniform. "
            "A turn without a target gets the lowest priority.",
        ),
    ]
    buffer_size: Annotated[int, Field(ge=1, description="Episodes in the replay buffer.")]
    first_action: Annotated[
        Literal["fresh", "stored"],
        Field(description="First candidate of a state: a new sample, or the action in the buffer."),
    ]
    keep_optimal: Annotated[
        bool, Field(description="Keep an action that its critique calls optimal, unrefined.")
    ]
    role_model: Annotated[
        Literal["policy", "target", "reference"],
        Field(description="Model that writes critiques and refinements."),
    ]
    ablation: Annotated[
        Literal[
            "none",
            "shuffled_outcomes",
            "shuffled_critiques",
            "empty_critiques",
            "frozen_critic",
            "majority",
        ],
        Field(description="Ablation that corrupts or removes one part of the algorithm."),
    ]
    role_tokens: Annotated[
        int,
        Field(
            ge=1,
            description="Maximum tokens of a role's text; a refined action may have as many as "
            "the policy's.",
        ),
    ]
    role_temperature: Annotated[
        float, Field(ge=0, description="Temperature of forecasts, backups and refinements.")
    ]
    critique_temperature: Annotated[float, Field(ge=0, description="Temperature of critiques.")]
    minibatch_tokens: Annotated[
        int,
        Field(description="Trained tokens of one gradient step of the policy; 0: one per phase."),
    ]
    successor_minibatch_tokens: Annotated[
        int, Field(description="The same for the successor model, whose targets are noisier.")
    ]

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for a value out of range."""
        require_fraction(ema_decay=self.ema_decay, td_lambda=self.td_lambda)
        require_at_least(0, priority_exponent=self.priority_exponent)
        require_at_least(1, buffer_size=self.buffer_size)
        require_at_least(1, role_tokens=self.role_tokens)
        require_at_least(0, role_temperature=self.role_temperature)
        require_at_least(0, critique_temperature=self.critique_temperature)


@dataclass(frozen=True, kw_only=True)
class NLACDiagnosticsConfig:
    """Size of the measurements of the critic at evaluation."""

    num_states: Annotated[
        int, Field(ge=0, description="States at which evaluation measures the critic; 0: none.")
    ]
    num_actions: Annotated[int, Field(ge=1, description="Actions measured at each state.")]
    num_forecasts: Annotated[int, Field(ge=1, description="Forecasts of each measured action.")]
    num_rollouts: Annotated[int, Field(ge=1, description="Rollouts of each measured action.")]

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for a value out of range."""
        require_at_least(0, num_states=self.num_states)
        require_at_least(1, num_actions=self.num_actions, num_forecasts=self.num_forecasts)
        require_at_least(1, num_rollouts=self.num_rollouts)


@dataclass(kw_only=True)
class NLACConfig:
    """Settings of NLAC (arXiv 2512.04601)."""

    turns_per_update: Annotated[int, Field(ge=1, description="Replayed turns per update.")]
    num_forecasts: Annotated[
        int, Field(ge=1, description="Forecasts that one critique reads (k in the paper).")
    ]
    num_refinements: Annotated[
        int, Field(ge=1, description="Critiques and refinements of one action (m in the paper).")
    ]
    policy_target: Annotated[
        Literal["refined", "best_of_n", "advantage_weighted", "best_critique"],
        Field(
            description="Training target of the policy. refined: the refined action, as in the "
            "paper; best_of_n: the best of fresh and refined actions; advantage_weighted: all of "
            "them, weighted by value; best_critique: the action with the best critique."
        ),
    ]
    num_candidates: Annotated[
        int, Field(ge=1, description="Fresh actions per state; the first of them is refined.")
    ]
    selection_temperature: Annotated[
        float, Field(gt=0, description="Temperature τ of best_of_n: log frequency + value / τ.")
    ]
    separate_critic: Annotated[
        bool, Field(description="Give the successor model weights separate from the policy's.")
    ]
    improvement_check: Annotated[
        NLACImprovementCheckConfig | None,
        Field(description="Improvement check; requires separate_critic. null: none."),
    ]
    show_alternatives: Annotated[
        bool, Field(description="Show forecasts of alternative actions to the evaluator.")
    ]
    require_optimal: Annotated[
        bool,
        Field(description="Distill only actions that their own critique calls optimal."),
    ]
    kl_coef: Annotated[
        float, Field(ge=0, description="Weight of the KL divergence from the initial policy.")
    ]
    critic_warmup: Annotated[
        int, Field(ge=0, description="Updates that train only the critic, at the start.")
    ]
    min_parse_rate: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Share of each role's texts that must be parsable at the first update; "
            "0: not checked.",
        ),
    ] = 0.0
    optimizer: OptimizerSpec
    diagnostics: NLACDiagnosticsConfig
    advanced: NLACAdvancedConfig
    prompts: NLACPromptsConfig

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for a value out of range and for settings that contradict each other."""
        require_fraction(min_parse_rate=self.min_parse_rate)
        require_at_least(1, turns_per_update=self.turns_per_update)
        require_at_least(1, num_forecasts=self.num_forecasts)
        require_at_least(1, num_refinements=self.num_refinements)
        require_at_least(0, kl_coef=self.kl_coef, critic_warmup=self.critic_warmup)
        compares = self.show_alternatives or self.policy_target != "refined"
        require_at_least(2 if compares else 1, num_candidates=self.num_candidates)
        require_above(0, selection_temperature=self.selection_temperature)
        target, ablation = self.policy_target, self.advanced.ablation
        is_shared, check = not self.separate_critic, self.improvement_check
        by_value = target in ("best_of_n", "advantage_weighted")
        conflicts = {
            "algo.improvement_check needs algo.separate_critic=true, because training a shared "
            "critic moves the policy": bool(check and check.every) and is_shared,
            "algo.advanced.ablation=frozen_critic needs algo.separate_critic=true, because "
            "training the policy moves a shared critic": ablation == "frozen_critic" and is_shared,
            "algo.advanced.ablation=majority needs algo.policy_target=best_of_n": (
                ablation == "majority" and target != "best_of_n"
            ),
            f"algo.require_optimal has no effect on algo.policy_target={target}; set it to false": (
                self.require_optimal and by_value
            ),
            f"algo.policy_target={target} cannot learn from empty critiques; "
            "set algo.advanced.ablation=shuffled_critiques": (
                ablation == "empty_critiques" and target in ("best_critique", "advantage_weighted")
            ),
            "algo.policy_target=best_critique refines nothing; set algo.advanced.keep_optimal to "
            "false": self.advanced.keep_optimal and target == "best_critique",
        }
        _refuse(conflicts)


@dataclass(kw_only=True)
class NLACMonteCarloConfig(NLACConfig):
    """Settings of NLACMonteCarlo, an ablation of NLAC without bootstrapping."""

    def check_settings(self) -> None:
        super().check_settings()
        _refuse_shuffled_outcomes(self)


@dataclass(kw_only=True)
class NLRLConfig(NLACConfig):
    """Settings of NLRL, which summarizes rollouts instead of bootstrapping."""

    rollouts: Annotated[int, Field(ge=1, description="Rollouts summarized in one target.")]

    def check_settings(self) -> None:
        super().check_settings()
        require_at_least(1, rollouts=self.rollouts)
        _refuse_shuffled_outcomes(self)


@dataclass(kw_only=True)
class NLACSelfDistillationConfig(NLACConfig):
    """Settings of NLACSelfDistillation, which refines by rollouts and has no critic."""

    rollouts: Annotated[int, Field(ge=1, description="Rollouts that the refiner reads.")]

    def check_settings(self) -> None:
        super().check_settings()
        require_at_least(1, rollouts=self.rollouts)
        required = {
            "algo.improvement_check=null": not (
                self.improvement_check and self.improvement_check.every
            ),
            "algo.separate_critic=false": not self.separate_critic,
            "algo.policy_target=refined": self.policy_target == "refined",
            "algo.advanced.ablation=none": self.advanced.ablation == "none",
            "algo.advanced.keep_optimal=false": not self.advanced.keep_optimal,
            "algo.advanced.role_model=policy or reference": self.advanced.role_model != "target",
        }
        _refuse({f"NLACSelfDistillation needs {text}": not met for text, met in required.items()})


def _refuse_shuffled_outcomes(config: NLACConfig) -> None:
    line = f"{type(config).__name__} has no terminal targets to shuffle"
    is_wrong = config.advanced.ablation == "shuffled_outcomes"
    _refuse({f"{line}; set algo.advanced.ablation=none": is_wrong})


def _refuse(conflicts: dict[str, bool]) -> None:
    """Raise UserError with the first message that applies."""
    for message, applies in conflicts.items():
        if applies:
            raise UserError(message, code="conflicting-settings")


# --- Self-AC ---

CRITIC_PROMPT_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class SelfACAdvanced:
    """Rarely changed settings of Self-AC."""

    normalise_advantages: NormaliseAdvantages
    values: Annotated[
        Literal["recomputed", "frozen"],
        Field(description="Values in targets and advantages: of each forward pass, or those from "
              "before the update."),
    ]  # fmt: skip
    critic_grad: Annotated[
        Literal["full", "detach_prefix"],
        Field(description="detach_prefix: the critic does not train the actor's features."),
    ]


@dataclass(kw_only=True)
class SelfACConfig(TrainingConfig):
    """Settings of Self-AC."""

    critic_prompt: Annotated[
        str,
        Field(description="Text after every state. {closing} is the end-of-turn token. A text that "
              "starts with {message} becomes a message in the model's chat template."),
    ]  # fmt: skip
    thought_tokens: Annotated[
        int,
        Field(ge=0, description="Split answers at blank lines into turns of at least this many "
              "tokens. 0: never."),
    ]  # fmt: skip
    ratio: Annotated[
        Literal["turn", "turn_geo", "token"],
        Field(description="Probability ratio: of a turn, its geometric mean per token, or of each "
              "token."),
    ]  # fmt: skip
    clip_eps: Clip
    gamma: Discount
    gae_lambda: GAELambda
    alpha: Annotated[float, Field(ge=0, le=1, description="Weight of the critic in the loss.")]
    td_steps: Annotated[int, Field(ge=1, description="Targets of V: TD(1) to TD(td_steps).")]
    critic_warmup: CriticWarmup
    layout: Annotated[
        Literal["visible_first", "interleaved", "flex"],
        Field(description="Layout of packed rows. interleaved: one dense mask, slower. flex: "
              "FlexAttention on CUDA."),
    ]  # fmt: skip
    advanced: Annotated[SelfACAdvanced, Field(description="Rarely changed settings.")]

    def check_settings(self) -> None:
        """Raise UserError for a critic prompt with an unknown slot."""
        for name in CRITIC_PROMPT_SLOT.findall(self.critic_prompt.removeprefix("{message}")):
            if name != "closing":
                line = f"algo.critic_prompt has the unknown slot {{{name}}}"
                remedy = "use {closing}, or {message} at the very start"
                raise UserError(f"{line}; {remedy}", code="unknown-slot")


# --- StepAgent ---

FragmentsPerUpdate = Annotated[
    int,
    Field(ge=0, description="Expert states per update, drawn anew. 0: all of them (inverse: one in "
          "`num_samples`)."),
]  # fmt: skip
AttemptPart = Annotated[
    Literal["turn", "last_line"],
    Field(description="Sample the expert's whole turn, or its last line after the expert's own "
          "thought."),
]  # fmt: skip


@dataclass(kw_only=True)
class StepAgentImplicitConfig(DPOConfig):
    """Settings of StepAgent's implicit variant."""

    expert_states_per_update: FragmentsPerUpdate
    attempt: AttemptPart


@dataclass(kw_only=True)
class StepAgentInverseConfig(Settings):
    """Settings of StepAgent's inverse variant."""

    rollout: Annotated[
        Literal["fragment", "environment"],
        Field(description="fragment: sample at expert states. environment: play whole episodes, "
              "half of them for each phase."),
    ]  # fmt: skip
    expert_states_per_update: FragmentsPerUpdate
    num_samples: Annotated[
        int, Field(ge=2, description="Samples per expert state; their mean is its baseline.")
    ]
    attempt: AttemptPart
    reward: Annotated[
        Literal["logit", "neg_log_d", "log_one_minus_d"],
        Field(description="log(1 - D) - log D, -log D, or log(1 - D)."),
    ]
    reward_clip: Annotated[float, Field(ge=0, description="Clip rewards to +- this.")]
    nll_coef: ImitationCoef
    discriminator_epochs: Annotated[
        int, Field(ge=1, description="Passes over the samples of an update. Too many overfit.")
    ]
    discriminator_turns_per_step: Annotated[
        int, Field(ge=0, description="Labelled turns of one optimizer step. 0: one per epoch.")
    ]
    discriminator_optimizer: Annotated[
        OptimizerSpec, Field(description="Optimizer of the discriminator.")
    ]
    ppo: Annotated[
        PPOConfig, Field(description="PPO. At expert states without its values and GAE.")
    ]
