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

from agentrl_cli.core.errors import UserError
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
    tokens_per_step: TokensPerStep
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

    episodes_per_group: Annotated[int, Field(ge=2, description="Episodes of one task per group.")]
    normalise_advantages: Annotated[
        bool, Field(description="Divide advantages by the standard deviation of the group.")
    ]
    clip: Clip
    kl_coef: KLCoef


# --- PPO ---


@dataclass(kw_only=True)
class PPOConfig(TrainingConfig):
    """Settings of PPO."""

    level: Annotated[Literal["turn", "token"], Field(description="One step of GAE.")]
    discount: Discount
    gae_lambda: GAELambda
    normalise_advantages: NormaliseAdvantages
    clip: Clip
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
    discount: Discount
    ema_decay: Annotated[
        float, Field(ge=0, le=1, description="Share of its weights that the target keeps.")
    ]
    normalise_advantages: NormaliseAdvantages
    clip: Clip
    actor_epochs: Annotated[int, Field(ge=1, description="Passes over the new episodes.")]
    tokens_per_step: TokensPerStep
    optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the policy.")]
    critic_optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the critic.")]


# --- DPO ---


@dataclass(kw_only=True)
class DPOConfig(TrainingConfig):
    """Settings of DPO."""

    beta: Beta
    imitation_coef: ImitationCoef
    reference: Annotated[
        Literal["start", "iteration"],
        Field(description="Reference: the initial policy, or the policy before each update."),
    ]


# --- NLAC ---

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
    clip: Clip
    discount: Discount
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
          "`attempts`)."),
]  # fmt: skip
AttemptPart = Annotated[
    Literal["turn", "last_line"],
    Field(description="Sample the expert's whole turn, or its last line after the expert's own "
          "thought."),
]  # fmt: skip


@dataclass(kw_only=True)
class StepAgentImplicitConfig(DPOConfig):
    """Settings of StepAgent's implicit variant."""

    fragments_per_update: FragmentsPerUpdate
    attempt: AttemptPart


@dataclass(kw_only=True)
class StepAgentInverseConfig(Settings):
    """Settings of StepAgent's inverse variant."""

    rollout: Annotated[
        Literal["fragment", "environment"],
        Field(description="fragment: sample at expert states. environment: play whole episodes, "
              "half of them for each phase."),
    ]  # fmt: skip
    fragments_per_update: FragmentsPerUpdate
    attempts: Annotated[
        int, Field(ge=2, description="Samples per expert state; their mean is its baseline.")
    ]
    attempt: AttemptPart
    reward: Annotated[
        Literal["logit", "unlike_agent", "like_expert"],
        Field(description="log(1 - D) - log D, -log D, or log(1 - D)."),
    ]
    reward_clip: Annotated[float, Field(ge=0, description="Clip rewards to +- this.")]
    imitation_coef: ImitationCoef
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
