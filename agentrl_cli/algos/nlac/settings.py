"""NLAC's rarely changed settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl_cli.algos.nlac.choice import Control
from agentrl_cli.core.errors import require_at_least, require_fraction


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """Rarely changed. `ema_decay` is the share that the target keeps; `trace` chains backups along
    what was played (0: the paper's single one); `priority_exponent` and `buffer_size`, in episodes,
    are the replay's. With `keep_optimal` an action that its critique calls optimal stays as it is,
    else the refiner is asked all the same. `role_weights` names the model that writes critiques
    and refinements: nothing trains these roles, so the live policy forgets them and its start
    (reference) does not.
    `control` spoils or leaves out one part on purpose: what NLAC gains over it is that part's work.
    The successor's targets are mostly one sampled outcome each, so one step on all of them
    (`successor_tokens_per_step` 0) follows their noise less than many small ones.
    `monitored_states`, `monitored_actions` of each, `monitored_forecasts` and `probes` of each
    action size the measurements at evaluation."""

    ema_decay: float
    trace: float
    priority_exponent: float
    buffer_size: int
    first_action: Literal["fresh", "stored"]
    keep_optimal: bool
    role_weights: Literal["policy", "target", "reference"]
    control: Control
    role_tokens: int
    role_temperature: float
    critique_temperature: float
    tokens_per_step: int
    successor_tokens_per_step: int
    monitored_states: int
    monitored_actions: int
    monitored_forecasts: int
    probes: int

    def __post_init__(self) -> None:
        require_fraction(ema_decay=self.ema_decay, trace=self.trace)
        require_at_least(0, priority_exponent=self.priority_exponent)
        require_at_least(1, buffer_size=self.buffer_size)
        require_at_least(1, role_tokens=self.role_tokens, monitored_actions=self.monitored_actions)
        require_at_least(1, monitored_forecasts=self.monitored_forecasts, probes=self.probes)
        require_at_least(0, role_temperature=self.role_temperature)
        require_at_least(0, monitored_states=self.monitored_states)
        require_at_least(0, critique_temperature=self.critique_temperature)
