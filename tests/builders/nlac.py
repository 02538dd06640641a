"""NLAC with scripted roles, for tests: a generator records each call and the model it uses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl_cli.algos.base import Context, Phase
from agentrl_cli.algos.nlac.algorithm import NLAC
from agentrl_cli.algos.nlac.parse import PARSERS
from agentrl_cli.algos.nlac.roles import Candidate
from agentrl_cli.algos.samples import TurnRef
from agentrl_cli.algos.settings import NLACAdvancedConfig, NLACDiagnosticsConfig, NLACPromptsConfig
from agentrl_cli.core.types import Episode, Message, Sample, Task, Turn
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.learner import Learner
from tests.builders.models import model_config
from tests.builders.tiny_models import tiny_tokenizer

CHAT = Chat(tiny_tokenizer())
STRICT = PARSERS["strict"]
SAMPLING = Sampling(max_tokens=24, temperature=1.0, stop_ids=CHAT.stop_ids)
PROMPTS = NLACPromptsConfig(
    forecast="Forecast it.",
    backup="Seen: {response}\nThen: {forecast}\nBack it up.",
    evaluate="Mine:\n{forecasts}\n{alternatives}Evaluate it.",
    refine="Critique: {critique}\nRefine it.",
    refine_by_rollouts="Plays:\n{rollouts}\nRefine it by them.",
    aggregate="Seen: {response}\nPlays:\n{rollouts}\nDraw it together.",
    terminal="{response} {outcome}",
    alternatives="Others:\n{others}\n",
)
ENDS = {
    "Forecast it.": "forecast",
    "Back it up.": "backup",
    "Evaluate it.": "evaluate",
    "Refine it.": "refine",
    "Refine it by them.": "refine",
    "Draw it together.": "backup",
}
Line = Callable[[str, random.Random], str]


def messages(prompt: str) -> list[str]:
    """The contents of a prompt's messages, oldest first, the open answer left out."""
    return [part.split("\n", 1)[1] for part in prompt.split("<|im_start|>")[1:-1]]


def asked(prompt: str) -> str:
    return messages(prompt)[-1].removesuffix("<|im_end|>\n")


@dataclass
class Call:
    """One call of the generator: its prompts as ids and as text."""

    role: str
    model: str
    prompts: list[list[int]]
    texts: list[str]
    sampling: Sampling


@dataclass
class Troupe(Generator):
    """Every role is a function of the prompt's text and a seeded draw; the calls are kept."""

    lines: dict[str, Line]
    cut: str = ""  # the role whose texts stop at the limit of tokens, before their closing token
    calls: list[Call] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        if not prompts:
            return []
        texts = [CHAT.text_of(prompt) for prompt in prompts]
        roles = {next((ENDS[e] for e in ENDS if asked(t).endswith(e)), "act") for t in texts}
        assert len(roles) < 2, f"one call mixes the roles {roles}"
        role = "".join(roles)
        self.calls.append(Call(role, model, prompts, texts, sampling))
        rows = zip(texts, seeds, strict=True)
        return [[self._say(role, t, f"{s} {j}") for j in range(sampling.n)] for t, s in rows]

    def mark_changed(self, model: str) -> None:
        self.changed.append(model)

    def of(self, role: str) -> list[Call]:
        return [call for call in self.calls if call.role == role]

    def _say(self, role: str, text: str, seed: str) -> Completion:
        ids = CHAT.encode_action(self.lines[role](text, random.Random(seed)))
        if role == self.cut:
            return Completion(ids[:-1], [float("nan")] * (len(ids) - 1), "length")
        return Completion(ids, [float("nan")] * len(ids), "stop")


def troupe(**lines: str | list[str] | Line) -> Troupe:
    """Speakers of fixed lines, of lines drawn from a list, or of a function."""
    usual: dict[str, Any] = {
        "act": ["Is it a dog?", "Is it a cat?"],
        "forecast": ["Yes. Success.", "No. Failure."],
        "backup": ["It was yes. Success.", "It was no. Failure."],
        "evaluate": "Optimality: Yes. It wins.",
        "refine": "Is it an owl?",
    }
    return Troupe({role: _line(line) for role, line in (usual | lines).items()})


def _line(line: str | list[str] | Line) -> Line:
    if isinstance(line, str):
        return lambda prompt, draw: line
    return (lambda prompt, draw: draw.choice(line)) if isinstance(line, list) else line


def episode(name: str, actions: list[str], *, success: bool, stop: str = "done") -> Episode:
    """A played episode whose observations and closing words name it; its log-probs are NaN."""
    seen = [Message("system", "Play."), Message("user", f"Here is {name} at 0.")]
    turns = []
    for i, action in enumerate(actions):
        turns.append(Turn(seen, action, [], [], [], info={}))
        seen = [Message("user", f"Here is {name} at {i + 1}.")]
    CHAT.encode_turns(turns)
    for turn in turns:
        turn.logprobs = [float("nan")] * len(turn.action_ids)
    turns[-1].info["success"], turns[-1].done = success, stop == "done"
    turns[-1].reward = float(success)
    closing = [Message("user", f"The end of {name}.")]
    return Episode(
        name, Task(name, "train", {}), name, 0, turns, stop=stop, final_observation=closing
    )


def places(*episodes: Episode) -> list[TurnRef]:
    return [TurnRef(e, t) for e in episodes for t in range(len(e.turns))]


@dataclass
class ValuedCandidate(Candidate):
    """A candidate of a given value, whatever its forecasts say."""

    value: float = 0.5  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]


def candidate(text: str, draws: int, *success: float, critique: str = "") -> Candidate:
    """A drawn action with the given value, the mean of `success`, and one forecast for each."""
    return ValuedCandidate(
        WON_PLACE, CHAT.encode_action(text), draws, ["It goes on."] * len(success),
        critique=critique, value=fmean(success) if success else 0.5, parser=STRICT,
    )  # fmt: skip


def filled(*episodes: Episode) -> ReplayBuffer:
    buffer = ReplayBuffer(None, 100)
    buffer.add(list(episodes))
    return buffer


def nlac(
    advanced: dict[str, Any] | None = None,
    *,
    diagnostics: dict[str, int] | None = None,
    **changes: Any,
) -> NLAC:
    usual: dict[str, Any] = {
        "turns_per_update": 4, "num_forecasts": 1, "num_refinements": 1, "require_optimal": False,
        "show_alternatives": False, "policy_target": "refined",
        "num_candidates": 1 + changes.get("show_alternatives", False),
        "selection_temperature": 0.3, "separate_critic": False, "improvement_check": None,
        "kl_coef": 0.0, "critic_warmup": 0, "min_parse_rate": 0.0,
        "optimizer": OptimizerSpec(lr=1e-2), "critic_optimizer": None, "prompts": PROMPTS,
    }  # fmt: skip
    rare: dict[str, Any] = {
        "ema_decay": 0.9, "td_lambda": 0.0, "priority_exponent": 0.5, "buffer_size": 100,
        "first_action": "fresh", "keep_optimal": False, "role_model": "policy", "ablation": "none",
        "role_tokens": 40,
        "role_temperature": 1.0, "critique_temperature": 1.0, "minibatch_tokens": 0,
        "refine_temperature": 1.0, "critic_steps": 1, "drop_unchanged": False,
        "backup_model": "target", "terminal_targets": "text",
    }  # fmt: skip
    measured = {"num_states": 4, "num_actions": 2, "num_forecasts": 16, "num_rollouts": 4}
    return NLAC(
        **{**usual, **changes},
        diagnostics=NLACDiagnosticsConfig(**{**measured, **(diagnostics or {})}),
        advanced=NLACAdvancedConfig(**{**rare, **(advanced or {})}),
    )


def weights(algo: NLAC, folder: Path) -> ModelSet:
    return ModelSet(model_config(folder), algo.models(), "cpu", 0)


def bound(algo: NLAC, generator: Generator, models: ModelSet) -> NLAC:
    """The algorithm with its context; nothing is probed and every state looks like itself only."""
    context = Context(
        chat=CHAT, models=models, generator=generator, sampling=SAMPLING,
        probe=lambda starts: [], indistinguishable_tasks=lambda played, turn: [played.task], seed=0,
    )  # fmt: skip
    algo.bind(context)
    return algo


def updated(algo: NLAC, buffer: ReplayBuffer) -> dict[str, Phase]:
    return {phase.name: phase for phase in algo.update([], buffer)}


def learn(algo: NLAC, models: ModelSet, buffer: ReplayBuffer) -> dict[str, float]:
    learner = Learner(
        models, algo.models(), microbatch_tokens=4096, seed=0, publish=lambda name: None
    )
    return learner.run(algo.update([], buffer), 0)


def written(sample: Sample) -> str:
    return CHAT.decode([i for i, m in zip(sample.ids, sample.mask, strict=True) if m])


def prompt(sample: Sample) -> list[int]:
    """The ids before the first trained one; nothing behind it may be untrained."""
    first = sample.mask.index(1)
    assert all(sample.mask[first:])
    return sample.ids[:first]


WON = episode("won", ["Is it big?", "Is it red?", "Is it a cat?"], success=True)
WON_PLACE = TurnRef(WON, 0)
LOST = episode("lost", ["Is it old?", "Is it a dog?"], success=False)
