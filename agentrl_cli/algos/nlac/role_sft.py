"""SFT of the roles of NLAC, for a model that cannot play them yet.

Texts are made from episodes that the policy plays on train tasks, so no critic has to exist:

    forecast    the next response of the environment, and the true outcome of the episode
    backup      the same response, and the outcome that the forecast in the prompt names
    critique    the verdict that counting the forecasts in the prompt gives
    refinement  the same action if the critique approves it, otherwise another sample

Outcomes in the prompts of backups and critiques are drawn at random. So these roles learn to read,
and only forecasts know how episodes end. The policy is trained on demonstrations at the same time,
to keep what it can do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl_cli.algos.base import Algorithm, Context, Phase, Texts
from agentrl_cli.algos.losses import nll
from agentrl_cli.algos.nlac.roles import Forecaster, Ids, fill, outcome_word
from agentrl_cli.algos.samples import TurnRef, all_turns, completion_sample, episode_samples
from agentrl_cli.algos.settings import NLACRoleSFTConfig
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Sample
from agentrl_cli.models.specs import ModelSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer

OUTCOMES = ("Success.", "Failure.")
CHECKED_TURNS = 16  # at which forecasts are sampled and parsed, before an update
NO_ALTERNATIVES = 0.3  # share of critiques that read no forecasts of another action


@dataclass(kw_only=True)
class NLACRoleSFT(NLACRoleSFTConfig, Algorithm):
    """The warm start of NLAC. `NLACRoleSFTConfig` documents its settings."""

    demo_use = "may"

    def models(self) -> dict[str, ModelSpec]:
        return {"policy": ModelSpec(kind="trained", generates=True, optimizer=self.optimizer)}

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.roles = Forecaster(context, self.prompts, self, "policy")

    def update(self, episodes: list[Episode], buffer: ReplayBuffer) -> Iterator[Phase]:
        """Yield one phase on texts of all roles at some turns, and on some demonstrations."""
        self.roles.begin_stream("role_sft", self.context.step)
        rng = random.Random(self.roles.seed("texts"))
        finished = [e for e in episodes if e.turns and e.stop == "done" and not e.error]
        played = all_turns(finished)
        rng.shuffle(played)
        turns, rest = played[: self.turns_per_update], played[self.turns_per_update :]
        others = self.roles.act(turns)
        read = turns[:CHECKED_TURNS]
        forecasts = self.roles.forecast(read, [turn.action_ids for turn in read], 1)
        pairs = zip(turns, others, strict=True)
        samples = [sample for pair in pairs for sample in self.role_samples(*pair, rng)]
        rest = rest[: self.forecasts_per_update]
        samples += [self.forecast_sample(turn) for turn in rest]
        demos = self.context.demos
        demos = rng.sample(demos, min(self.demos_per_update, len(demos)))
        samples += [sample for demo in demos for sample in episode_samples(demo)]
        metrics = {"role_sft/turns": float(len(turns)), "role_sft/demos": float(len(demos))}
        metrics["role_sft/forecasts"] = float(len(turns) + len(rest))
        metrics["role_sft/valid_forecasts"] = mean([float(bool(row)) for row in forecasts])
        yield Phase(
            "role_sft", samples, nll, epochs=self.epochs, minibatch_tokens=self.minibatch_tokens,
            metrics=metrics,
        )  # fmt: skip

    def role_samples(self, turn: TurnRef, other: Ids, rng: random.Random) -> Iterator[Sample]:
        """Yield a training sample of each role at a turn. `other` is another action in its
        state."""
        prompts, outcome = self.prompts, rng.choice(OUTCOMES)
        yield self.forecast_sample(turn)
        later = outcome if turn.is_last else self.forecast(turn.next, outcome)
        read = fill(prompts.backup, response=self._short(turn.response), forecast=later)
        yield self._sample(turn, read, self.forecast(turn, outcome))

        mine, others = self._outcomes(rng), self._outcomes(rng)
        others = [] if rng.random() < NO_ALTERNATIVES else others[: len(mine)]
        critique, is_good = count_verdict(mine, others)
        shown = ["\n".join(self.forecast(turn, one) for one in rows) for rows in (mine, others)]
        alternatives = fill(prompts.alternatives, others=shown[1]) if others else ""
        texts = {"forecasts": shown[0], "others": shown[1] or "none"}
        read = fill(prompts.evaluate, alternatives=alternatives, **texts)
        yield self._sample(turn, read, critique)
        if is_good or other != turn.action_ids:
            prompt = self.roles.prompt(turn, turn.action_ids, prompts.refine, critique=critique)
            action = turn.action_ids if is_good else other
            if self.roles.is_complete(action):
                yield completion_sample(prompt, action)

    def forecast_sample(self, turn: TurnRef) -> Sample:
        """Return the training sample of a forecast with the true outcome of the episode."""
        text = self.forecast(turn, outcome_word(turn.episode))
        return self._sample(turn, self.prompts.forecast, text)

    def forecast(self, turn: TurnRef, outcome: str) -> str:
        """Return the next response that is not empty and an outcome in the form of a forecast."""
        turns = range(turn.turn, len(turn.episode.turns))
        responses = (TurnRef(turn.episode, at).response for at in turns)
        response = self._short(next(filter(None, responses), ""))
        return fill(self.prompts.terminal, response=response, outcome=outcome).strip()

    def _short(self, response: str) -> str:
        """Return the first words of a response, so that a forecast has room for its outcome."""
        words, encode = response.split(), self.context.chat.encode_action
        room = self.role_tokens - max(len(encode(outcome)) for outcome in OUTCOMES)
        while words and len(encode(" ".join(words))) > room:
            words = words[: len(words) * 3 // 4]
        return " ".join(words)

    def _outcomes(self, rng: random.Random) -> list[str]:
        """Return outcomes of which a random share is success."""
        share = rng.random()
        return rng.choices(OUTCOMES, [share, 1 - share], k=self.num_forecasts)

    def _sample(self, turn: TurnRef, instruction: str, text: str) -> Sample:
        prompt = self.roles.prompt_after(turn.state_ids, turn.action_ids, instruction)
        return completion_sample(prompt, self.context.chat.encode_action(text))

    def texts(self, turns: int, max_tokens: int) -> dict[str, Texts]:
        forecasts = Texts(CHECKED_TURNS, self.role_tokens)
        return {"actions": Texts(self.turns_per_update, max_tokens), "forecasts": forecasts}

    def extra_prompt_tokens(self) -> int:
        """Return the tokens of the longest instruction with its forecasts, and of the text."""
        prompts = (self.prompts.forecast, self.prompts.backup, self.prompts.evaluate)
        longest = max(len(self.roles.prompt_after([], [], text)) for text in prompts)
        return longest + (2 * self.num_forecasts + 1) * self.role_tokens


def count_verdict(mine: Sequence[str], others: Sequence[str]) -> tuple[str, bool]:
    """Return the critique that counting the outcomes of an action and of another one gives, and
    whether it approves the action."""
    wins, rest = mine.count(OUTCOMES[0]), "as well as another turn" if others else "well"
    if wins >= (others.count(OUTCOMES[0]) if others else len(mine) / 2):
        return f"Optimality: Yes. It ends {rest}.", True
    rest = "worse than another turn" if others else "in failure"
    return f"Optimality: No. It ends {rest}.", False
