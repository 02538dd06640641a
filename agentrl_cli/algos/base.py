"""What an algorithm is: it declares its models and turns episodes into phases of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Task
from agentrl_cli.models.specs import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_cli.generators.base import Generator, Sampling
    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.models.policy import Batch, Outputs
    from agentrl_cli.rollout.chat_template import Chat
    from agentrl_cli.rollout.play import EpisodeStart
    from agentrl_cli.rollout.replay_buffer import ReplayBuffer


def trained_tokens(sample: Sample) -> float:
    """The default unit of a loss: one per trained token."""
    return float(sum(sample.mask))


def per_sample(sample: Sample) -> float:
    """The unit of a loss that is averaged over samples (turns, pairs)."""
    return 1.0


@dataclass
class Phase:
    """Samples to train to completion before the algorithm goes on.

    `loss(outputs, batch)` returns a *sum* over its units and sums of metrics; the learner divides
    both by the sum of `units(sample)` over the optimizer step, across micro-batches and ranks.
    `tokens_per_step` bounds the trained tokens of one optimizer step (0: all samples in one step),
    and where only a head is trained, the units; `keep_together` adjacent samples always share a
    micro-batch. `entropy_gradient` says that the loss differentiates the entropy. With `head_only`
    the head alone is trained, at its full rate: the body keeps every bit, and its schedule waits.
    `metrics` are numbers the algorithm already knows; the loop counts a metric whose name ends with
    `/episodes` as episodes that were played during the update.
    """

    name: str
    samples: list[Sample]
    loss: Callable[[Outputs, Batch], tuple[Tensor, dict[str, Tensor]]]
    model: str = "policy"
    epochs: int = 1
    tokens_per_step: int = 0
    keep_together: int = 1
    entropy_gradient: bool = False
    head_only: bool = False
    units: Callable[[Sample], float] = trained_tokens
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Context:
    """What the loop hands to an algorithm once; `step` is kept current by the loop.

    `probe` plays starts with the current policy; `indistinguishable_tasks(episode, turn)` names the
    tasks of the episode's split in which the same actions bring the same observations up to that
    turn; `demos` are the demonstrations, with token ids; `turn_delimiter` is the text at which the
    world cuts a reply into turns ("": never).
    """

    chat: Chat
    models: ModelSet
    generator: Generator
    sampling: Sampling
    probe: Callable[[list[EpisodeStart]], list[Episode]]
    indistinguishable_tasks: Callable[[Episode, int], list[Task]]
    seed: int
    step: int = 0
    demos: list[Episode] = field(default_factory=list)
    turn_delimiter: str = ""


@dataclass(frozen=True)
class Texts:
    """How many texts are sampled, and the tokens that one may have."""

    count: int
    longest: int


class Algorithm(ABC):
    """Subclasses are keyword-only dataclasses without defaults; their fields are the schema."""

    context: Context
    plays = True  # whether the loop collects fresh episodes before each update
    group_size = 1  # how many episodes of one task are played side by side
    replay_capacity = 0  # how many episodes the buffer keeps for replay; 0: it never looks back
    demo_use: Literal["never", "may", "must"] = "never"  # whether it learns from demonstrations
    uses_ratio = False  # whether its loss has a ratio to the policy that sampled
    learns_offline = False  # whether replayed episodes alone train its policy

    @abstractmethod
    def models(self) -> dict[str, ModelSpec]:
        """The weights this algorithm needs, by name."""

    @abstractmethod
    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield phases; code between two yields sees the models as just trained."""

    def bind(self, context: Context) -> None:
        """Receive the given objects before the first update."""
        self.context = context

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """The most that an update samples by role, the fresh episodes apart; known before anything
        is loaded. An episode has up to `turns` actions of up to `max_tokens` tokens."""
        return {}

    def extra_prompt_tokens(self) -> int:
        """Return the maximum number of tokens that the algorithm's own prompts, with the texts
        sampled after them, add to an episode. Called after `bind`."""
        return 0

    def annotate(self, episodes: list[Episode]) -> None:
        """Write into `turn.info` what a reader wants to see of the episodes; nothing by default."""

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Measure, at evaluation time, what this algorithm must watch; nothing by default."""
        return {}

    def check(self, episodes: list[Episode]) -> Iterator[tuple[str, str]]:
        """Yield rows `(name, text)` about these episodes for `agentrl train --dry`. Raises
        UserError if the algorithm cannot train with this model."""
        return iter(())

    def generator(self, act: str) -> Generator:
        """Return the generator that plays if `eval.act` is not `policy` but `act`. Raises UserError
        if the algorithm has none."""
        line = f"this algorithm cannot play eval.act={act}; set eval.act=policy"
        raise UserError(line, code="unknown-act")

    def state_values(self, states: list[list[int]]) -> list[float]:
        """What each state is worth, its ids ending with an action or a part of one. Raises
        UserError where no critic reads such states."""
        raise UserError("no critic here values partial answers; search with a run of algo=self_ac")

    def state(self) -> dict[str, Any]:
        """JSON values that a checkpoint must hold."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""


@dataclass(kw_only=True)
class PlayOnly(Algorithm):
    """No algorithm: the policy alone, for a model that is only evaluated."""

    def models(self) -> dict[str, ModelSpec]:
        """The policy, without an optimizer."""
        return {"policy": ModelSpec(kind="trained", generates=True)}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Nothing to train."""
        return iter(())
