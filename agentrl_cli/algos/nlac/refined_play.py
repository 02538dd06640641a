"""Acting with what would be distilled, without distilling it (`eval.act=refined`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agentrl_cli.algos.nlac.choice import Chooser
from agentrl_cli.algos.nlac.roles import Ids
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.rollout.play import split_into_turns


@dataclass(frozen=True, kw_only=True)
class RefinedPlay(Generator):
    """A generator that plays the action that would be distilled in place of the policy's, which is
    kept where there is none."""

    chooser: Chooser
    generator: Generator

    def generate(
        self, prompts: list[Ids], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        """One action behind each prompt, a turn at most; log-probs of changed ones are NaN."""
        context = self.chooser.roles.context
        delimiter, chat = context.turn_delimiter, context.chat
        replies = self.generator.generate(prompts, seeds, sampling, model)
        first = [split_into_turns(reply, delimiter, chat)[0] for (reply, *_) in replies]
        turns = [TurnRef.from_state(ids) for ids in prompts]
        groups = self.chooser.draw(turns, [completion.ids for completion in first])
        pairs = zip(map(self.chooser.best_action, groups), first, strict=True)
        return [[_changed(completion, ids or completion.ids)] for ids, completion in pairs]

    def fitting(self, prompts: list[Ids], model: str = "policy") -> int:
        """As many as the generator inside says."""
        return self.generator.fitting(prompts, model)

    def load(self, model: str, version: int, path: Path | None = None) -> None:
        """Hand on to the generator inside."""
        self.generator.load(model, version, path)


def _changed(completion: Completion, ids: Ids) -> Completion:
    if ids == completion.ids:
        return completion
    return replace(completion, ids=ids, logprobs=[float("nan")] * len(ids), finish="stop")
