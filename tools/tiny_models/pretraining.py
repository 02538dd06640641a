"""Maximum likelihood of a corpus's texts and their branches, which makes the bundled models.

A branch is the output of a role after one turn of a text, and the rest of the text does not attend
to it. All branches of a text form one packed sample (models/packed_attention.py), so that the text
is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl_cli.algos.base import Algorithm, Context, Phase
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.samples import append_tokens
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.forward import causal_lm
from agentrl_cli.models.packed_attention import enable_packing
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer


@dataclass(kw_only=True)
class Pretraining(Algorithm):
    """One optimizer step on all texts of an update, each token with its weight."""

    optimizer: OptimizerSpec

    def bind(self, context: Context) -> None:
        """Receive the given objects; the model then takes packed samples."""
        super().bind(context)
        prompt = context.chat.encode_raw("{closing}")
        policy = causal_lm(context.models.module("policy"))
        enable_packing(policy, prompt, "visible_first", "full")

    def models(self) -> dict[str, ModelSpec]:
        return {"policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)}

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        yield Phase("sft", [branched_sample(episode) for episode in episodes], nll)


def branched_sample(episode: Episode) -> Sample:
    """Return a text with its branches as one packed sample. Fields: `branch` is the number of each
    token's branch, `weight` its weight, from `info["weight"]` of a turn and from the branches in
    `info["branches"]`. Raises UserError for a played episode."""
    if any("branches" not in turn.info for turn in episode.turns):
        raise UserError(
            "algo=pretraining needs rollout=corpus, and these episodes were played; run an "
            "experiment=ENV_base",
            code="needs-corpus",
        )
    sample, label = Sample([], [], {"branch": [], "weight": []}), 0
    for turn in episode.turns:
        append_tokens(sample, turn.observation_ids)
        for place in ("before", "behind"):
            if place == "behind":
                _append_weighted(sample, turn.action_ids, turn.info["weight"], 0)
            for branch in turn.info.get("branches", ()):
                if branch["place"] == place:
                    label += 1
                    append_tokens(sample, branch["prompt_ids"], branch=label)
                    weights = [branch["weight"]] * len(branch["answer_ids"])
                    _append_weighted(sample, branch["answer_ids"], weights, label)
    return sample


def _append_weighted(sample: Sample, ids: list[int], weights: list[float], label: int) -> None:
    sample.ids += ids
    sample.mask += [int(weight > 0) for weight in weights]
    sample.per_token["weight"] += weights
    sample.per_token["branch"] += [float(label)] * len(ids)
