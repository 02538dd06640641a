"""Self-AC: self-actor-critic, one transformer that acts and judges its own states.

After every state of an episode a critic prompt puts the model in the critic's role; a linear head
reads V at the prompt's last token. The prompts are shadows that nothing later sees (models/
shadow.py), so one forward pass trains the critic on all states of an episode and the actor on all
its turns. Known to us from slides only, without a paper; choices where they are silent: the
advantage is GAE over turns (arXiv 1506.02438), an episode that was cut off bootstraps from its
last value, a turn's ratio may be its geometric mean (arXiv 2507.18071). The slides name three
agents: ReAct, whose turns are those of the world; CoT (`thought_tokens`), whose turns are the
thoughts of an answer; ToT, which searches with the trained critic (search.py) and trains nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import (
    clipped_turns,
    shift_left,
    sum_by_turn,
    td_targets,
    turn_advantages,
)
from agentrl_cli.algos.self_ac.packing import (
    PackedEpisode,
    bootstrap_across_restarts,
    left_out_reason,
    pack_episode,
    state_values,
    turns_of,
)
from agentrl_cli.algos.self_ac.thoughts import by_thought, tell
from agentrl_cli.algos.value_spans import (
    left_out_metrics,
    truncated_state_ids,
    value_metrics,
)
from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode
from agentrl_cli.models.packable import enable_packing
from agentrl_cli.models.policy import Batch, Outputs, causal_lm, logprobs_and_values, max_positions
from agentrl_cli.models.shadow import CriticGrad, Layout
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """`normalise_advantages` takes from every advantage their mean over the update's turns, as it
    was before the update, and divides by their deviation: values that are all too high or too low,
    as in the first updates, then discourage or reinforce nothing as a whole. `values` says which V
    targets and advantages rest on: each pass's own, or the one read before the update."""

    normalise_advantages: bool
    values: Literal["recomputed", "frozen"]


@dataclass(kw_only=True)
class SelfAC(Algorithm):
    """`discount` is the slides' λ, `td_steps` their five targets, `alpha` the critic's share of the
    loss; `critic_grad=detach_prefix` keeps the critic out of the actor's features. Above 0
    `thought_tokens` are the fewest of a thought that counts as a turn of its own."""

    critic_prompt: str
    thought_tokens: int
    ratio: Literal["turn", "turn_geo", "token"]
    clip: float
    discount: float
    gae_lambda: float
    alpha: float
    td_steps: int
    critic_grad: CriticGrad
    layout: Layout
    epochs: int
    tokens_per_step: int
    optimizer: OptimizerSpec
    advanced: Advanced
    critic: list[int] = field(init=False, repr=False)
    scale: tuple[float, float] = field(init=False, default=(0.0, 1.0), repr=False)

    def __post_init__(self) -> None:
        require_at_least(1, td_steps=self.td_steps, epochs=self.epochs)
        require_at_least(0, clip=self.clip, thought_tokens=self.thought_tokens)
        require_at_least(0, tokens_per_step=self.tokens_per_step)
        require_fraction(discount=self.discount, gae_lambda=self.gae_lambda, alpha=self.alpha)

    def models(self) -> dict[str, ModelSpec]:
        """One model; only its head is the critic's own, and thrown away after training."""
        spec = ModelSpec(kind="trained", generates=True, optimizer=self.optimizer, head="value")
        return {"policy": spec}

    def bind(self, context: Context) -> None:
        """Receive the given objects. Raises UserError where the critic prompt is empty, the model
        cannot read it packed, or the world already cuts replies into thoughts."""
        super().bind(context)
        if self.thought_tokens and context.turn_delimiter:
            raise UserError(
                f"algo.thought_tokens is {self.thought_tokens} but the environment itself cuts "
                "replies into thoughts; give algo.thought_tokens=0, or env.turns=single"
            )
        self.critic = context.chat.raw(self.critic_prompt)
        if not self.critic:
            raise UserError(
                f"algo.critic_prompt {self.critic_prompt!r} has no token; give it a word"
            )
        policy = causal_lm(context.models.module("policy"))
        enable_packing(policy, self.critic, self.layout, self.critic_grad)

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """One phase: each episode is one packed sample (one for each segment between restarts)."""
        packed = self.read(episodes)
        samples = [sample for one in packed for sample in one.samples]
        self.scale = scale_of(packed) if self.advanced.normalise_advantages else (0.0, 1.0)
        yield Phase(
            "actor_critic", samples, self.loss, epochs=self.epochs,
            tokens_per_step=self.tokens_per_step, units=turns_of,
            metrics=thoughts_a_turn(packed) | self._left_out(episodes),
        )  # fmt: skip

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """L = alpha L_critic + (1 - alpha) L_actor, summed over turns. The V in targets and
        advantages is this pass's own, or the one from before the update."""
        assert outputs.values is not None
        streams = batch.streams
        states = sum_by_turn(streams["value_at"], batch)
        acted, ends = shift_left(states, 1) > 0, states > shift_left(states, 1)
        graded = sum_by_turn(streams["graded"], batch) > 0
        cut = sum_by_turn(streams["bootstrap"], batch) > 0

        values = sum_by_turn(outputs.values * streams["value_at"], batch)
        frozen = self.advanced.values == "frozen"
        held = sum_by_turn(streams["old_value"], batch) if frozen else values.detach()
        rewards = torch.where(cut, held, sum_by_turn(streams["reward"], batch))
        known = torch.where(ends & ~graded, rewards, held)  # nothing is learnt of such an end
        advantages, _ = turn_advantages(rewards, known, ends, self.discount, self.gae_lambda)
        targets = td_targets(rewards, known, self.discount, self.td_steps)

        critic = ((values - targets) ** 2).mean(0)[graded].sum()
        centre, spread = self.scale
        credit = (advantages - centre) / spread
        actor, metrics = clipped_turns(outputs, batch, credit, self.clip, self.ratio)
        metrics |= {
            "critic_loss": critic.detach(),
            "actor_loss": actor.detach(),
            "value": values.detach()[acted].sum(),
            "advantage": advantages[acted].sum(),
        }
        return self.alpha * critic + (1 - self.alpha) * actor, metrics

    def read(self, episodes: list[Episode]) -> list[PackedEpisode]:
        """The fit episodes, packed, with values and old log-probs by the trainer's own pass; their
        turns' `info` gets `value`, `advantage` and `td_error`; `thoughts`, too, where cut."""
        fit = [episode for episode in episodes if self._unfit(episode) is None]
        text = partial(self.context.chat.read, special=False)
        packed = [
            pack_episode(by_thought(e, text, self.thought_tokens), self.critic, self._behind(e))
            for e in fit
        ]
        samples = [sample for one in packed for sample in one.samples]
        models = self.context.models
        module, head = models.module("policy"), models.head("policy")
        found = iter(logprobs_and_values(module, head, samples))
        for one in packed:
            rows = []
            for sample in one.samples:
                sample.streams["old_logprob"], values = next(found)
                at = sample.streams["value_at"]
                sample.streams["old_value"] = (values * torch.tensor(at)).tolist()
                rows.append(values.tolist())
            one.values = state_values(one.samples, rows)
            advantages, errors = one.credit(self.discount, self.gae_lambda)
            bootstrap_across_restarts(one, advantages, self.gae_lambda)
            notes = zip(one.episode.turns, one.values, advantages, errors, strict=False)
            for turn, value, advantage, error in notes:
                turn.info |= {"value": value, "advantage": advantage, "td_error": error}
        for episode, one in zip(fit, packed, strict=True):
            if one.episode is not episode:
                tell(episode, one.episode, self.discount)
        return packed

    def annotate(self, episodes: list[Episode]) -> None:
        """Write `value`, `advantage` and `td_error` into every turn's info."""
        self.read(episodes)

    def monitor(self, episodes: list[Episode]) -> dict[str, float]:
        """Do the values foresee how the episodes ended: `critic/…`. The outcome belongs to the
        state after the last action, one step further on."""
        fit = [one.episode for one in self.read(episodes)]
        return value_metrics(fit, self.discount, lambda turn: 1 + turn.done)

    @torch.no_grad()
    def state_values(self, states: list[list[int]]) -> list[float]:
        """V of each state: the critic prompt is read behind its cached prefix, and nothing later
        sees it. Raises UserError where a state is too long for the model."""
        room = max_positions(self.context.models.module("policy")) - len(self.critic)
        if max(map(len, states), default=0) > room:
            raise UserError(f"a state has more than {room} ids; set rollout.max_context to {room}")
        head = self.context.models.head("policy")
        assert head is not None
        return head(self.context.generator.hidden([s + self.critic for s in states])).tolist()

    def _behind(self, episode: Episode) -> list[int]:
        module = self.context.models.module("policy")
        return truncated_state_ids(episode, self.context.chat, module, len(self.critic))

    def _unfit(self, episode: Episode) -> str | None:
        most = max_positions(self.context.models.module("policy"))
        return left_out_reason(episode, len(self.critic), most)

    def _left_out(self, episodes: list[Episode]) -> dict[str, float]:
        return left_out_metrics("self_ac", episodes, self._unfit, more=("long",))


def thoughts_a_turn(packed: list[PackedEpisode]) -> dict[str, float]:
    """How many thoughts a turn was cut into, as a metric."""
    thoughts = [turn for one in packed for turn in one.episode.turns]
    turns = sum(bool(thought.observation_ids) for thought in thoughts)
    return {"self_ac/thoughts": len(thoughts) / max(1, turns)}


def scale_of(packed: list[PackedEpisode]) -> tuple[float, float]:
    """Mean and population deviation of the advantages of all turns; a deviation of 0 counts as
    1."""
    found = [turn.info["advantage"] for one in packed for turn in one.episode.turns]
    return (statistics.fmean(found), statistics.pstdev(found) or 1.0) if found else (0.0, 1.0)
