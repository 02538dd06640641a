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

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.models.specs import OptimizerSpec, check_limits

# --- optimizers and shared parts ---

Clip = Annotated[float, Field(ge=0, description="Clip the ratio to 1 - clip and 1 + clip.")]
KLCoef = Annotated[
    float, Field(ge=0, description="Weight of the KL from the initial policy. 0: no penalty.")
]
Discount = Annotated[float, Field(ge=0, le=1, description="Discount factor of one step.")]
GAELambda = Annotated[
    float, Field(ge=0, le=1, description="Lambda of GAE. 0: one-step TD. 1: return minus value.")
]
CriticWarmup = Annotated[int, Field(ge=0, description="First updates that train only the critic.")]
NormaliseAdvantages = Annotated[
    bool, Field(description="Scale advantages to mean 0 and deviation 1 over each update.")
]
AdvantageStd = Annotated[
    Literal["population", "sample"],
    Field(description="Standard deviation with divisor n or n - 1. sample: GRPO adds 1e-4 to it, "
          "as TRL does."),
]  # fmt: skip
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


# --- forecasts, shared by NLAC and its controls ---

PLACEHOLDER = re.compile(r"\{(\w+)\}")  # of a prompt
NLAC_PLACEHOLDERS = {  # by prompt, the placeholders that it may contain
    "forecast": (),
    "backup": ("response", "forecast"),
    "evaluate": ("forecasts", "alternatives", "others"),
    "refine": ("critique",),
    "refine_by_rollouts": ("rollouts",),
    "aggregate": ("response", "rollouts"),
    "terminal": ("response", "outcome"),
    "alternatives": ("others",),
    "frame": ("instruction",),
}


@dataclass(kw_only=True)
class ForecastPromptConfig(Settings):
    """The instruction of the forecast role and how all roles' instructions are sent and parsed."""

    forecast: Annotated[
        str, Field(min_length=1, description="Successor: forecast how the episode continues.")
    ]
    parser: Annotated[
        Literal["strict", "lenient"],
        Field(description="Accept only the trained form of role texts, or other forms, too."),
    ] = "strict"
    speaker: Annotated[
        Literal["user", "system"], Field(description="Sender of the instructions.")
    ] = "user"
    frame: Annotated[
        str,
        Field(description="Wraps an {instruction} if the template allows no message of `speaker`."),
    ] = "{instruction}"

    def check_settings(self) -> None:
        """Raise UserError for an unknown placeholder and for a frame without its instruction."""
        for prompt, known in NLAC_PLACEHOLDERS.items():
            for name in PLACEHOLDER.findall(vars(self).get(prompt, "")):
                if name not in known:
                    choices = ", ".join(known) or "none"
                    line = f"prompts.{prompt} has the unknown placeholder '{name}'"
                    raise UserError(f"{line}; it can have: {choices}", code="unknown-placeholder")
        if "{instruction}" not in self.frame:
            line = "prompts.frame does not contain '{instruction}'; add it"
            raise UserError(line, code="missing-placeholder")


@dataclass(kw_only=True)
class FrozenForecastConfig(ForecastPromptConfig):
    """Forecasts of a frozen copy of the initial model, as NLAC's critic writes them."""

    num_forecasts: Annotated[int, Field(ge=1, description="Forecasts per turn.")]
    role_tokens: Annotated[int, Field(ge=1, description="Maximum tokens of a forecast.")]
    role_temperature: Annotated[float, Field(ge=0, description="Temperature of forecasts.")]


# --- SFT, RFT ---


@dataclass(kw_only=True)
class SFTConfig(TrainingConfig):
    """Settings of SFT, and of RFT, which is SFT with `only_success`."""

    only_success: Annotated[bool, Field(description="Train on the policy's successes only.")]
    frozen_forecast: Annotated[
        FrozenForecastConfig | None,
        Field(description="Train only on turns after which the forecasts of the initial model are "
              "not worse than after the turn before. null: on all turns."),
    ] = None  # fmt: skip


# --- GRPO ---


@dataclass(kw_only=True)
class GRPOForecastConfig(FrozenForecastConfig):
    """Forecasts as a part of GRPO's advantage."""

    coef: Annotated[float, Field(ge=0, description="Weight of the improvement of forecasts.")]


@dataclass(kw_only=True)
class GRPOConfig(TrainingConfig):
    """Settings of GRPO."""

    group_size: Annotated[int, Field(ge=2, description="Episodes of one task per group.")]
    normalise_advantages: Annotated[
        bool, Field(description="Divide by the deviation of the group.")
    ]
    advantage_std: AdvantageStd = "population"
    skip_zero_advantages: Annotated[
        bool,
        Field(description="Leave out episodes with advantage 0, also from the mean and the KL. "
              "false: as in TRL."),
    ] = True  # fmt: skip
    loss_type: Annotated[
        Literal["dapo", "grpo", "dr_grpo"],
        Field(description="Mean of the loss. dapo: over all tokens of a step. grpo: over tokens of "
              "an episode, then over episodes. dr_grpo: sum over tokens of an episode divided by "
              "`max_completion_length`, then mean over episodes."),
    ] = "dapo"  # fmt: skip
    max_completion_length: Annotated[
        int | None, Field(ge=1, description="Divisor of loss_type=dr_grpo, in tokens.")
    ] = None
    clip_eps: Clip
    clip_eps_high: Annotated[
        float | None, Field(ge=0, description="Clip the ratio to 1 + this. null: to 1 + clip_eps.")
    ] = None
    kl_coef: KLCoef
    use_bias_correction_kl: Annotated[
        bool,
        Field(description="Multiply the KL of a token by its ratio, which makes the gradient "
              "unbiased. true: as in TRL."),
    ] = False  # fmt: skip
    frozen_forecast: Annotated[
        GRPOForecastConfig | None,
        Field(description="Add to the advantage of a turn how much it improves the forecasts of "
              "the initial model. null: nothing."),
    ] = None  # fmt: skip

    def check_settings(self) -> None:
        """Raise UserError for dr_grpo without its divisor, or with a KL, which it does not have."""
        if self.loss_type == "dr_grpo" and (self.kl_coef or not self.max_completion_length):
            _refuse("algo.loss_type=dr_grpo needs algo.max_completion_length and algo.kl_coef=0")


# --- PPO ---


@dataclass(kw_only=True)
class PPOConfig(TrainingConfig):
    """Settings of PPO."""

    level: Annotated[Literal["turn", "token"], Field(description="One step of GAE.")]
    gamma: Discount
    gae_lambda: GAELambda
    normalise_advantages: NormaliseAdvantages
    advantage_std: AdvantageStd = "population"
    clip_eps: Clip
    value_clip: Annotated[float, Field(ge=0, description="Maximum change of a value. 0: no limit.")]
    value_clip_error: Annotated[
        Literal["larger", "clipped"],
        Field(description="Error with `value_clip`. larger: the larger error of the free and the "
              "clipped value. clipped: that of the clipped one, as in Stable-Baselines3."),
    ] = "larger"  # fmt: skip
    value_coef: Annotated[float, Field(ge=0, description="Weight of the value loss.")]
    critic_warmup: CriticWarmup
    kl_coef: KLCoef
    entropy_coef: Annotated[float, Field(ge=0, description="Weight of the entropy bonus.")]


# --- ArCHer ---


@dataclass(kw_only=True)
class ArCHerConfig(Settings):
    """Settings of ArCHer."""

    episodes_per_update: Annotated[int, Field(ge=1, description="Episodes of a critic update.")]
    critic_updates: Annotated[int, Field(ge=1, description="Critic updates per policy update.")]
    critic_warmup: CriticWarmup
    buffer_size: Annotated[int, Field(ge=1, description="Episodes in the replay buffer.")]
    action: Annotated[
        Literal["fresh", "stored"],
        Field(description="Target of V. fresh: Q of a new action, as in the paper. stored: of the "
              "replayed one."),
    ]  # fmt: skip
    num_critics: Annotated[
        int,
        Field(ge=1, le=2, description="Pairs of heads for Q and V on the critic. Each has targets "
              "of its own; advantages are of the minimum."),
    ]  # fmt: skip
    head_layers: Annotated[
        int, Field(ge=0, description="Hidden layers of each head. 0: linear, starting at zero.")
    ]
    gamma: Discount
    ema_decay: Annotated[float, Field(ge=0, le=1, description="Share that the target keeps.")]
    normalise_advantages: NormaliseAdvantages
    clip_eps: Clip
    actor_states: Annotated[
        int,
        Field(ge=0, description="Replayed states of an actor epoch, each with a fresh action. 0: "
              "the actor trains on the new episodes, with a clipped ratio."),
    ]  # fmt: skip
    actor_epochs: Annotated[
        int, Field(ge=1, description="Passes over the new episodes, or draws of `actor_states`.")
    ]
    minibatch_tokens: TokensPerStep
    optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the policy.")]
    critic_optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the critic.")]

    def check_settings(self) -> None:
        """Raise UserError for two critics with linear heads."""
        if self.num_critics > 1 and not self.head_layers:
            _refuse("algo.num_critics=2 needs algo.head_layers of at least 1, because two linear "
                    "heads start equal and stay equal")  # fmt: skip


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


@dataclass(kw_only=True)
class NLACPromptsConfig(ForecastPromptConfig):
    """Instructions of the roles, each sent as one message after the interaction so far. Words in
    braces, such as `{response}`, are replaced."""

    backup: Annotated[str, Field(description="Backup: forecast from {response} and {forecast}.")]
    evaluate: Annotated[
        str, Field(description="Evaluator: critique by {forecasts} and {alternatives}.")
    ]
    refine: Annotated[str, Field(description="Refiner: rewrite an action by its {critique}.")]
    refine_by_rollouts: Annotated[
        str, Field(description="Refiner: rewrite an action by {rollouts}.")
    ]
    aggregate: Annotated[str, Field(description="NLRL: summarize {rollouts} after {response}.")]
    terminal: Annotated[
        str,
        Field(description="Form of {response} and {outcome}: rollouts, forecasts of nlac_role_sft, "
              "and targets of last turns with terminal_targets=text."),
    ]  # fmt: skip
    alternatives: Annotated[
        str,
        Field(description="Fills {alternatives} of evaluate with forecasts of {others}; absent if "
              "there are none."),
    ] = ""  # fmt: skip


@dataclass(kw_only=True)
class NLACImprovementCheckConfig(Settings):
    """The improvement check: the policy trains only while its training targets are measurably
    better than its own play."""

    every: Annotated[int | None, Field(ge=1, description="Updates between checks. null: none.")]
    num_targets: Annotated[int, Field(ge=8, description="Training targets of each measurement.")]
    num_rollouts: Annotated[int, Field(ge=1, description="Rollouts of a target, and of own play.")]
    window: Annotated[int, Field(ge=1, description="Latest measurements that count.")]


@dataclass(kw_only=True)
class NLACAdvancedConfig(Settings):
    """Settings of NLAC that rarely change."""

    ema_decay: Annotated[
        float,
        Field(ge=0, le=1, description="Share of its weights that the target model keeps at each "
              "optimizer step of the successor model."),
    ]  # fmt: skip
    td_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="λ of TD(λ): probability that a chain of backups starts one "
              "turn later. 0: one backup. 1: from the end of the episode."),
    ]  # fmt: skip
    priority_exponent: Annotated[
        float, Field(ge=0, description="Replay turns by their loss to this power. 0: uniformly.")
    ]
    buffer_size: Annotated[int, Field(ge=1, description="Episodes in the replay buffer.")]
    first_action: Annotated[
        Literal["fresh", "stored"],
        Field(description="First candidate of a state: a new sample, or the action in the buffer."),
    ]
    keep_optimal: Annotated[bool, Field(description="Keep actions that are called optimal.")]
    drop_unchanged: Annotated[
        bool,
        Field(description="policy_target=refined: do not train on an action that was not approved "
              "if the refiner repeated it."),
    ]  # fmt: skip
    role_model: Annotated[
        Literal["policy", "target", "reference"],
        Field(description="Model that writes critiques and refinements."),
    ]
    backup_model: Annotated[
        Literal["target", "reference"],
        Field(description="Model that writes backups. reference: the initial weights, which do not "
              "unlearn how. target: the moving average of the successor model, as in the paper."),
    ]  # fmt: skip
    terminal_targets: Annotated[
        Literal["backup", "text"],
        Field(description="Targets of last turns. backup: the backup role writes them from the "
              "true outcome, as all others. text: the fixed text prompts.terminal."),
    ]  # fmt: skip
    ablation: Annotated[
        Literal["none", "shuffled_outcomes", "shuffled_critiques", "empty_critiques",
                "shuffled_next_states", "frozen_critic", "majority"],
        Field(description="Ablation that corrupts or removes one part of the algorithm."),
    ]  # fmt: skip
    role_tokens: Annotated[int, Field(ge=1, description="Maximum tokens of a text.")]
    role_temperature: Annotated[
        float, Field(ge=0, description="Temperature of forecasts, backups and summaries.")
    ]
    critique_temperature: Annotated[float, Field(ge=0, description="Temperature of critiques.")]
    refine_temperature: Annotated[float, Field(ge=0, description="Temperature of refinements.")]
    minibatch_tokens: TokensPerStep
    critic_steps: Annotated[
        int,
        Field(
            ge=1,
            description="Number of the critic's steps per update, about; more if targets are many.",
        ),
    ]


@dataclass(kw_only=True)
class NLACDiagnosticsConfig(Settings):
    """Size of the measurements of the critic at evaluation."""

    num_states: Annotated[int, Field(ge=0, description="States at which to measure. 0: none.")]
    num_actions: Annotated[int, Field(ge=1, description="Actions measured at each state.")]
    num_forecasts: Annotated[int, Field(ge=1, description="Forecasts of each measured action.")]
    num_rollouts: Annotated[int, Field(ge=1, description="Rollouts of each measured action.")]


@dataclass(kw_only=True)
class NLACConfig(Settings):
    """Settings of NLAC (arXiv 2512.04601)."""

    turns_per_update: Annotated[int, Field(ge=1, description="Replayed turns per update.")]
    num_forecasts: Annotated[int, Field(ge=1, description="Forecasts per critique (k in paper).")]
    num_refinements: Annotated[int, Field(ge=1, description="Refinements per action (m in paper).")]
    policy_target: Annotated[
        Literal["refined", "best_of_n", "advantage_weighted", "best_critique"],
        Field(description="Training target of the policy. refined: the refined action, as in the "
              "paper. best_of_n: the best of fresh and refined actions. advantage_weighted: all of "
              "them, weighted by advantage. best_critique: the action with the best critique."),
    ]  # fmt: skip
    num_candidates: Annotated[int, Field(ge=1, description="Fresh actions per state.")]
    selection_temperature: Annotated[
        float, Field(gt=0, description="Temperature τ of best_of_n: log frequency + value / τ.")
    ]
    separate_critic: Annotated[bool, Field(description="The successor model has its own weights.")]
    improvement_check: Annotated[
        NLACImprovementCheckConfig | None,
        Field(description="Improvement check; requires separate_critic. null: none."),
    ]
    show_alternatives: Annotated[
        bool, Field(description="Critiques read forecasts of others, too.")
    ]
    require_optimal: Annotated[bool, Field(description="Distill only actions called optimal.")]
    kl_coef: KLCoef
    critic_warmup: CriticWarmup
    min_parse_rate: Annotated[
        float,
        Field(ge=0, le=1, description="Share of each role's texts that must be parsable at the "
              "first update. 0: not checked."),
    ] = 0.0  # fmt: skip
    optimizer: OptimizerSpec
    critic_optimizer: Annotated[
        OptimizerSpec | None,
        Field(description="Optimizer of a separate critic. null: the settings of `optimizer`."),
    ]
    diagnostics: NLACDiagnosticsConfig
    advanced: NLACAdvancedConfig
    prompts: NLACPromptsConfig

    @property
    def checks_improvement(self) -> bool:
        """Whether the improvement check is on."""
        return self.improvement_check is not None and bool(self.improvement_check.every)

    def check_settings(self) -> None:
        """Raise UserError for settings that contradict each other."""
        if self.show_alternatives or self.policy_target != "refined":
            require_at_least(2, num_candidates=self.num_candidates)
        target, ablation = self.policy_target, self.advanced.ablation
        is_shared, by_value = not self.separate_critic, ("best_of_n", "advantage_weighted")
        if self.checks_improvement and is_shared:
            _refuse("algo.improvement_check needs algo.separate_critic=true, because training a "
                    "shared critic moves the policy")  # fmt: skip
        if ablation == "frozen_critic" and is_shared:
            _refuse("algo.advanced.ablation=frozen_critic needs algo.separate_critic=true, because "
                    "training the policy moves a shared critic")  # fmt: skip
        if ablation == "majority" and target != "best_of_n":
            _refuse("algo.advanced.ablation=majority needs algo.policy_target=best_of_n")
        if self.require_optimal and target in by_value:
            line = f"algo.require_optimal has no effect on algo.policy_target={target}"
            _refuse(f"{line}; set it to false")
        if ablation == "empty_critiques" and target in ("best_critique", "advantage_weighted"):
            line = f"algo.policy_target={target} cannot learn from empty critiques"
            _refuse(f"{line}; set algo.advanced.ablation=shuffled_critiques")


@dataclass(kw_only=True)
class NLACRoleSFTConfig(TrainingConfig):
    """Settings of the SFT of NLAC's roles."""

    turns_per_update: Annotated[
        int, Field(ge=1, description="Played turns per update; each gives a text for each role.")
    ]
    forecasts_per_update: Annotated[
        int, Field(ge=0, description="Further played turns per update that give a forecast alone.")
    ]
    demos_per_update: Annotated[
        int, Field(ge=0, description="Demonstrations per update, which keep the policy.")
    ]
    num_forecasts: Annotated[int, Field(ge=1, description="Forecasts in a critique's prompt.")]
    role_tokens: Annotated[int, Field(ge=1, description="Maximum tokens of a text.")]
    role_temperature: Annotated[float, Field(ge=0, description="Temperature of forecasts.")]
    prompts: NLACPromptsConfig


@dataclass(kw_only=True)
class NLRLConfig(NLACConfig):
    """Settings of NLRL, which summarizes rollouts instead of bootstrapping."""

    rollouts: Annotated[int, Field(ge=1, description="Rollouts summarized in one target.")]

    def check_settings(self) -> None:
        super().check_settings()
        if self.advanced.ablation in ("shuffled_outcomes", "shuffled_next_states"):
            line = f"NLRL does not back up, so it has nothing for {self.advanced.ablation}"
            _refuse(f"{line}; set algo.advanced.ablation=none")


@dataclass(kw_only=True)
class NLACSelfDistillationConfig(NLACConfig):
    """Settings of NLACSelfDistillation, which refines by rollouts and has no critic."""

    rollouts: Annotated[int, Field(ge=1, description="Rollouts that the refiner reads.")]

    def check_settings(self) -> None:
        super().check_settings()
        required = {
            "algo.improvement_check=null": not self.checks_improvement,
            "algo.separate_critic=false": not self.separate_critic,
            "algo.policy_target=refined": self.policy_target == "refined",
            "algo.advanced.ablation=none": self.advanced.ablation == "none",
            "algo.advanced.role_model=policy or reference": self.advanced.role_model != "target",
        }
        for setting, is_met in required.items():
            if not is_met:
                _refuse(f"NLACSelfDistillation needs {setting}")


def _refuse(message: str) -> None:
    raise UserError(message, code="conflicting-settings")


# --- Self-AC ---


@dataclass(frozen=True, kw_only=True)
class SelfACAdvanced:
    """Rarely changed settings of Self-AC."""

    normalise_advantages: NormaliseAdvantages
    values: Annotated[
        Literal["recomputed", "frozen"],
        Field(description="Values in targets and advantages: of each forward pass, or those from "
              "before the update."),
    ]  # fmt: skip
    warmup_trains: Annotated[
        Literal["head", "model"],
        Field(description="Weights that `critic_warmup` trains: the value head, or all."),
    ] = "head"
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
        for name in PLACEHOLDER.findall(self.critic_prompt.removeprefix("{message}")):
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
    reference: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["start", "iteration", "expert"],
        Field(description="Reference: the initial policy, the policy before each update, or an "
              "estimate of the expert: SFT of the initial policy on the demonstrations, once."),
    ]  # fmt: skip
    reference_epochs: Annotated[
        int, Field(ge=1, description="Passes of the SFT of `reference=expert`.")
    ]


@dataclass(kw_only=True)
class StepAgentInverseConfig(Settings):
    """Settings of StepAgent's inverse variant."""

    rollout: Annotated[
        Literal["fragment", "environment"],
        Field(description="fragment: sample at expert states. environment: play whole episodes, "
              "half of them for each phase."),
    ]  # fmt: skip
    expert_states_per_update: FragmentsPerUpdate
    num_samples: Annotated[int, Field(ge=2, description="Samples per expert state.")]
    attempt: AttemptPart
    reward: Annotated[
        Literal["logit", "neg_log_d", "log_one_minus_d"],
        Field(description="log(1 - D) - log D, -log D, or log(1 - D)."),
    ]
    reward_clip: Annotated[float, Field(ge=0, description="Clip rewards to +- this.")]
    nll_coef: ImitationCoef
    discriminator_epochs: Annotated[int, Field(ge=1, description="Passes; too many overfit.")]
    discriminator_turns_per_step: Annotated[
        int,
        Field(
            ge=0,
            description="Weight of labelled turns in one optimizer step; expert "
            "turns weigh as much as the samples at their state. 0: one step per epoch.",
        ),
    ]
    discriminator_optimizer: Annotated[
        OptimizerSpec, Field(description="Optimizer of the discriminator.")
    ]
    ppo: Annotated[
        PPOConfig, Field(description="PPO. At expert states without its values and GAE.")
    ]
