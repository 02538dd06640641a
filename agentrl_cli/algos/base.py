"""The interface of algorithms: declare models, turn episodes into phases of training."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample, Task
from agentrl_cli.models.specs import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_cli.algos.samples import TurnRef
    from agentrl_cli.generators.base import Generator, Sampling
    from agentrl_cli.models.forward import Batch, Outputs
    from agentrl_cli.models.model_set import ModelSet
    from agentrl_cli.rollout.chat_template import Chat
    from agentrl_cli.rollout.play import EpisodeStart
    from agentrl_cli.rollout.replay_buffer import ReplayBuffer


CONTRACT = "algorithm-contract"  # code of the error of an algorithm that breaks its contract


def trained_tokens(sample: Sample) -> float:
    """Return the default unit of a loss: the number of trained tokens."""
    return float(sum(sample.mask))


@dataclass
class Phase:
    """Samples that the learner trains before the algorithm continues.

    `loss(outputs, batch)` returns sums over its units: the loss, and metrics. The learner divides
    both by the sum of `units(sample)` over the optimizer step, across micro-batches and ranks.
    `minibatch_tokens` bounds the trained tokens of one optimizer step, or the units if no token is
    trained; 0 puts all samples into one step. `keep_together` adjacent samples share a micro-batch.
    Set `entropy_gradient` if the loss differentiates the entropy. With `head_only` only the head is
    trained, at its full learning rate. `after_step` is called after each optimizer step.
    `metrics` are logged under their own names, without that of the phase; the loop counts a metric
    with a name that ends with `/episodes` as episodes that were played during the update.
    """

    name: str
    samples: list[Sample]
    loss: Callable[[Outputs, Batch], tuple[Tensor, dict[str, Tensor]]]
    model: str = "policy"
    epochs: int = 1
    minibatch_tokens: int = 0
    keep_together: int = 1
    entropy_gradient: bool = False
    head_only: bool = False
    units: Callable[[Sample], float] = trained_tokens
    after_step: Callable[[], None] | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Context:
    """Objects that the loop gives to an algorithm; the loop updates `step`.

    `probe` plays episodes with the current policy. `indistinguishable_tasks(episode, turn)` returns
    the tasks of the episode's split that give the same observations up to that turn. `demos` are
    the demonstrations, tokenized. `turn_delimiter` is the text at which the environment splits a
    reply into turns, or "".
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
    """How many texts an update samples, and the maximum number of tokens of one."""

    count: int
    longest: int


class Algorithm(ABC):
    """Base of all algorithms. Subclasses are keyword-only dataclasses that inherit their settings
    (settings.py)."""

    context: Context
    plays = True  # whether the loop collects new episodes before each update
    group_size = 1  # episodes per task
    replay_capacity = 0  # episodes in the replay buffer; 0: no replay
    demo_use: Literal["never", "may", "must"] = "never"  # use of demonstrations
    uses_ratio = False  # whether the loss has a probability ratio to the sampling policy
    learns_offline = False  # whether the policy can learn from replayed episodes alone
    off_policy = False  # whether new episodes may be those of an earlier policy

    @abstractmethod
    def models(self) -> dict[str, ModelSpec]:
        """Return the models that this algorithm needs, by name."""

    @abstractmethod
    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield phases. Code after a yield sees the trained models."""

    def bind(self, context: Context) -> None:
        """Store the context, before the first update."""
        self.context = context

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        """Return how much an update samples besides new episodes, by role, at most. Before
        `bind` the number of demonstrations is not known. An episode has up to `turns` actions of
        up to `max_tokens` tokens."""
        return {}

    def extra_prompt_tokens(self) -> int:
        """Return the maximum number of tokens that the algorithm's own prompts, with the texts
        sampled after them, add to an episode. Called after `bind`."""
        return 0

    def annotate(self, episodes: list[Episode]) -> None:
        """Write values, advantages or critiques into `turn.info` for the report."""

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Return the algorithm's own metrics of evaluation episodes."""
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
        """Return V of states whose tokens end inside or after an action. Raises UserError if the
        algorithm has no such critic."""
        raise UserError("this algorithm has no critic for partial answers", code="no-critic")

    def action_values(self, turns: list[TurnRef]) -> list[float]:
        """Return the critic's estimate of Q(s, a) for the state and the action of each turn. Raises
        UserError if the algorithm has no such critic."""
        raise UserError("this algorithm has no critic of actions", code="no-critic")

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""


def models_of(algo: Algorithm) -> dict[str, ModelSpec]:
    """Return the models that an algorithm declares. Raises UserError if they are not a dictionary
    of ModelSpec with a policy."""
    found: Any = algo.models()
    specs = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(spec, ModelSpec) for spec in specs) or "policy" not in found:
        line = f"{type(algo).__name__}.models() returned {reprlib.repr(found)}"
        remedy = "return a dictionary of ModelSpec with the key 'policy'"
        raise UserError(f"{line}; {remedy}", code=CONTRACT)
    return found


@dataclass(kw_only=True)
class PlayOnly(Algorithm):
    """The policy alone, for models that are only evaluated."""

    def models(self) -> dict[str, ModelSpec]:
        return {"policy": ModelSpec(kind="trained", generates=True)}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        return iter(())
