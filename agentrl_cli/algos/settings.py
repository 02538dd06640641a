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

Clip = Annotated[
    float,
    Field(ge=0, description="Clipping range of the probability ratio: 1 - clip to 1 + clip."),
]
KLCoef = Annotated[
    float,
    Field(
        ge=0,
        description="Weight of the KL divergence from the initial policy. 0 keeps no reference "
        "model.",
    ),
]
Discount = Annotated[
    float, Field(ge=0, le=1, description="Discount factor from one step to the next.")
]
GAELambda = Annotated[
    float, Field(ge=0, le=1, description="Lambda of GAE. 0: one-step TD. 1: return minus value.")
]
CriticWarmup = Annotated[
    int,
    Field(ge=0, description="First updates that train only the critic while the policy waits."),
]
NormaliseAdvantages = Annotated[
    bool, Field(description="Scale advantages to mean 0 and deviation 1 over each update.")
]
TokensPerStep = Annotated[
    int,
    Field(
        ge=0,
        description="Trained tokens of one optimizer step; both samples of a pair count. 0: one "
        "step per epoch.",
    ),
]
ImitationCoef = Annotated[
    float,
    Field(
        ge=0,
        description="Weight of the expert action's negative log-likelihood per token, added to the "
        "loss. 0: none.",
    ),
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
        bool,
        Field(
            description="Train on successful episodes of the policy only. Uses no demonstrations."
        ),
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

    level: Annotated[
        Literal["turn", "token"], Field(description="Unit of one GAE step: a turn or a token.")
    ]
    discount: Discount
    gae_lambda: GAELambda
    normalise_advantages: NormaliseAdvantages
    clip: Clip
    value_clip: Annotated[
        float, Field(ge=0, description="Clipping range of the change of a value. 0: no clipping.")
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
        Field(
            description="Action in the target of V(s). fresh: sampled from the current policy, as "
            "in the paper. stored: the replayed one."
        ),
    ]
    discount: Discount
    ema_decay: Annotated[
        float,
        Field(ge=0, le=1, description="Share of its weights that the target keeps per update."),
    ]
    normalise_advantages: NormaliseAdvantages
    clip: Clip
    actor_epochs: Annotated[int, Field(ge=1, description="Passes over the fresh episodes.")]
    tokens_per_step: TokensPerStep
    optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the policy.")]
    critic_optimizer: Annotated[OptimizerSpec, Field(description="Optimizer of the critic.")]


# --- DPO ---


@dataclass(kw_only=True)
class DPOConfig(TrainingConfig):
    """Settings of DPO."""

    beta: Annotated[float, Field(ge=0, description="Inverse temperature of the preference.")]
    imitation_coef: ImitationCoef
    reference: Annotated[
        Literal["start", "iteration"],
        Field(
            description="Reference policy. start: the initial policy. iteration: the policy at the "
            "start of each update."
        ),
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
        Field(
            description="Values in targets and advantages. recomputed: from each forward pass. "
            "frozen: from before the update."
        ),
    ]
    critic_grad: Annotated[
        Literal["full", "detach_prefix"],
        Field(
            description="Gradient of the critic. full: into all features. detach_prefix: not into "
            "the features that the actor uses."
        ),
    ]


@dataclass(kw_only=True)
class SelfACConfig(TrainingConfig):
    """Settings of Self-AC."""

    critic_prompt: Annotated[
        str,
        Field(
            description="Text read after every state. {closing} is the end-of-turn token. A text "
            "that starts with {message} is sent as a message in the model's chat template."
        ),
    ]
    thought_tokens: Annotated[
        int,
        Field(
            ge=0,
            description="Split answers at blank lines into turns of at least this many tokens. 0: "
            "never.",
        ),
    ]
    ratio: Annotated[
        Literal["turn", "turn_geo", "token"],
        Field(
            description="Probability ratio. turn: of a whole action. turn_geo: its geometric mean "
            "per token. token: of each token."
        ),
    ]
    clip: Clip
    discount: Discount
    gae_lambda: GAELambda
    alpha: Annotated[float, Field(ge=0, le=1, description="Weight of the critic in the loss.")]
    td_steps: Annotated[
        int,
        Field(ge=1, description="The targets of V are TD(1) to TD(td_steps); the slides use 5."),
    ]
    critic_warmup: CriticWarmup
    layout: Annotated[
        Literal["visible_first", "interleaved", "flex"],
        Field(
            description="Layout of packed rows. visible_first: fast. interleaved: one dense mask, "
            "slower. flex: FlexAttention on CUDA."
        ),
    ]
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
    Field(
        ge=0,
        description="Expert states per update, drawn anew each time. 0: all of them (inverse: one "
        "in `attempts` of them).",
    ),
]
AttemptPart = Annotated[
    Literal["turn", "last_line"],
    Field(
        description="Part of the expert's turn that the policy samples. last_line: only the last "
        "line, after the expert's own thought."
    ),
]


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
        Field(
            description="Where the policy acts. fragment: `attempts` samples at each expert state. "
            "environment: whole episodes, half of them for each phase."
        ),
    ]
    fragments_per_update: FragmentsPerUpdate
    attempts: Annotated[
        int, Field(ge=2, description="Samples per expert state. Their mean is its baseline.")
    ]
    attempt: AttemptPart
    reward: Annotated[
        Literal["logit", "unlike_agent", "like_expert"],
        Field(
            description="Reward. logit: log(1 - D) - log D. unlike_agent: -log D. like_expert: "
            "log(1 - D)."
        ),
    ]
    reward_clip: Annotated[float, Field(ge=0, description="Rewards are clipped to +- this.")]
    imitation_coef: ImitationCoef
    discriminator_epochs: Annotated[
        int, Field(ge=1, description="Passes over the samples of an update. Too many overfit.")
    ]
    discriminator_turns_per_step: Annotated[
        int,
        Field(ge=0, description="Classified turns of one optimizer step. 0: one step per epoch."),
    ]
    discriminator_optimizer: Annotated[
        OptimizerSpec, Field(description="Optimizer of the discriminator.")
    ]
    ppo: Annotated[
        PPOConfig,
        Field(description="PPO for the policy. Expert states use neither its values nor GAE."),
    ]
