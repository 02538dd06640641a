"""Settings of models: which weights an algorithm needs and how each is optimized. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """AdamW and its learning rate schedule (cosine restarts: Loshchilov and Hutter 2017)."""

    lr: Annotated[float, Field(ge=0, le=10.0, description="Learning rate after the warm-up.")]
    head_lr: Annotated[
        float | None,
        Field(gt=0, le=10.0, description="Learning rate of the value head, which needs about 20 "
              "times the rate of the model. null: the rate of the model."),
    ] = None  # fmt: skip
    weight_decay: Annotated[float, Field(ge=0, description="Decoupled weight decay.")] = 0.0
    max_grad_norm: Annotated[float, Field(ge=0, description="Maximum gradient norm. 0: no.")] = 1.0
    warmup_steps: Annotated[int, Field(ge=0, description="Steps of the linear warm-up.")] = 0
    decay_steps: Annotated[int, Field(ge=0, description="End of the cosine. 0: constant.")] = 0

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One named set of weights. `kind` is `trained`, `ema` (a moving average of the model that it
    `follows`) or `frozen` (the start of the model that it `follows`). A trained model starts from
    the base model, or from the body of the model that it `begins_as`."""

    kind: str
    generates: bool
    optimizer: OptimizerSpec | None = None
    head: str | None = None
    follows: str = "policy"
    begins_as: str | None = None
    head_layers: int = 0  # hidden layers of the head

    def __post_init__(self) -> None:
        rate = self.optimizer.head_lr if self.optimizer else None
        if rate is not None and self.head is None:
            line = f"head_lr is {rate} but this model has no value head; give null"
            raise UserError(line, code="head-lr-without-head")

    @property
    def origin(self) -> str | None:
        """The name of the model that this one starts from; None for the base model."""
        return self.begins_as if self.kind == "trained" else self.follows


def with_reference(
    optimizer: OptimizerSpec, head: str | None = None, *, needed: bool = True
) -> dict[str, ModelSpec]:
    """Return a trained policy and, if `needed`, its frozen start."""
    policy = ModelSpec(kind="trained", generates=True, optimizer=optimizer, head=head)
    reference = {"reference": ModelSpec(kind="frozen", generates=False)} if needed else {}
    return {"policy": policy, **reference}
