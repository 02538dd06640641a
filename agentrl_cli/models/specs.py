"""What an algorithm declares of its weights: which models, how each is optimized."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_cli.core.errors import UserError, require_above, require_at_least, require_at_most

MOST_LR = 10.0  # about what AdamW then moves every weight by, in one step


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """AdamW's numbers. The learning rate rises linearly over `warmup_steps` optimizer steps, then
    stays, or falls by a cosine to zero at `decay_steps` when that is positive; after that it falls
    again over every `restart_steps`, each time from half as high (Loshchilov and Hutter 2017).
    `head_lr` is a value head's own rate, of the same schedule; None: the body's."""

    lr: float
    head_lr: float | None = None
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    warmup_steps: int = 0
    decay_steps: int = 0
    restart_steps: int = 0

    def __post_init__(self) -> None:
        require_at_least(0, lr=self.lr, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        require_at_least(0, warmup_steps=self.warmup_steps, decay_steps=self.decay_steps)
        require_at_least(0, restart_steps=self.restart_steps)
        require_at_most(MOST_LR, lr=self.lr)
        if self.head_lr is not None:
            require_above(0, head_lr=self.head_lr)
            require_at_most(MOST_LR, head_lr=self.head_lr)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One named set of weights. `kind`: trained, ema (a moving average of the trained model that it
    `follows`) or frozen (as that model began). A trained one begins as the base, or with the body
    of the model that it `begins_as`, wherever that was loaded from."""

    kind: str
    generates: bool
    optimizer: OptimizerSpec | None = None
    head: str | None = None
    follows: str = "policy"
    begins_as: str | None = None

    def __post_init__(self) -> None:
        rate = self.optimizer.head_lr if self.optimizer else None
        if rate is not None and self.head is None:
            remedy = "leave the key out, or give null"
            raise UserError(f"head_lr is {rate} but this model has no value head; {remedy}")

    @property
    def origin(self) -> str | None:
        """The model that this one begins as; None where that is the base."""
        return self.begins_as if self.kind == "trained" else self.follows
