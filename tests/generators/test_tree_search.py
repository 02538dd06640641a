"""Tree search on a toy whose values are known, and through a real generator's cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentrl_cli.cli.evaluate import evaluate_command
from agentrl_cli.cli.main import app
from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import check, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Sample
from agentrl_cli.generators.base import Completion, Generator, Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.generators.prefix_cache import pad
from agentrl_cli.generators.tree_search import TreeSearch
from agentrl_cli.models.forward import logprobs_and_values
from tests.builders.critics import Weights
from tests.builders.models import disturb
from tests.builders.runs import folders, settings, trained
from tests.builders.self_ac import self_ac

TEXTS = ["left", "right", "\n\n", "<end>", ".\n\n", "\n"]
LEFT, RIGHT, BLANK, END = 0, 1, 2, 3
CHAT_ENDS = Sampling(max_tokens=9, temperature=1.0, stop_ids=(END,))
DEPTH = 3


def steps(ids: list[int]) -> tuple[int, ...]:
    """The turns taken in an answer: each is a thought of one word, the last ends the answer."""
    return tuple(i for i in ids if i in (LEFT, RIGHT))


@dataclass
class Maze(Generator):
    """Writes all next thoughts there are: left or right, and the end behind the last."""

    calls: list[list[list[int]]] = field(default_factory=list)

    def generate(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, model: str = "policy"
    ) -> list[list[Completion]]:
        self.calls.append(prompts)
        return [
            [self._go(prompt[1:], j, sampling) for j in range(sampling.n)] for prompt in prompts
        ]

    def _go(self, taken: list[int], j: int, sampling: Sampling) -> Completion:
        ids: list[int] = []
        left = DEPTH - len(steps(taken))
        for k in range(left):
            ids += [(j >> k) % 2, END if k == left - 1 else BLANK]
            if ids[-1] in sampling.stop_ids:
                break
        ids = ids[: sampling.max_tokens]
        return Completion(ids, [-0.5] * len(ids), "stop" if ids[-1] == END else "length")


GREEDY_TRAP = {  # the first step that looks best leads to the worse end
    (LEFT,): 0.6, (RIGHT,): 0.5,
    (LEFT, LEFT): 0.3, (LEFT, RIGHT): 0.4, (RIGHT, LEFT): 0.7, (RIGHT, RIGHT): 0.2,
    (LEFT, LEFT, LEFT): 0.1, (LEFT, LEFT, RIGHT): 0.2, (LEFT, RIGHT, LEFT): 0.45,
    (LEFT, RIGHT, RIGHT): 0.3, (RIGHT, LEFT, LEFT): 0.65, (RIGHT, LEFT, RIGHT): 0.9,
    (RIGHT, RIGHT, LEFT): 0.0, (RIGHT, RIGHT, RIGHT): 0.95,
}  # fmt: skip


def search(**changes) -> tuple[TreeSearch, Maze]:
    usual = {"order": "beam", "expand": 2, "width": 1, "rounds": 3, "boundary": "blank_line"}
    maze = Maze()

    def known(states: list[list[int]]) -> list[float]:
        return [GREEDY_TRAP[steps(state[1:])] for state in states]

    return TreeSearch(**{**usual, **changes}).bind(maze, known, TEXTS), maze


def found(tree: TreeSearch, prompts: int = 1) -> list[tuple[int, ...]]:
    """The answers to as many equal prompts, which must agree with their tokens."""
    rows = tree.generate([[9]] * prompts, list(range(prompts)), CHAT_ENDS)
    assert all(len(row) == 1 and row[0].ids[-1] == END for row in rows)
    assert all(row[0].logprobs == [-0.5] * len(row[0].ids) for row in rows)
    return [steps(row[0].ids) for row in rows]


def test_wider_beam_finds_the_better_end():
    assert found(search(width=1)[0]) == [(LEFT, RIGHT, LEFT)]
    assert found(search(width=2)[0]) == [(RIGHT, LEFT, RIGHT)]
    assert found(search(width=4)[0], prompts=3) == [(RIGHT, RIGHT, RIGHT)] * 3


def test_best_first_returns_to_open_nodes():
    tree, maze = search(order="best_first", rounds=9)
    assert found(tree) == [(RIGHT, LEFT, RIGHT)]
    visited = [steps(prompts[0][1:]) for prompts in maze.calls]
    # left (0.6) disappoints, so right (0.5) is next; 0.9 then beats all that is open
    assert visited == [(), (LEFT,), (RIGHT,), (RIGHT, LEFT)]
    assert tree.judged_answers == 8


def test_last_round_completes_answers():
    tree, maze = search(width=1, rounds=1, expand=8)  # best of eight whole answers
    assert found(tree) == [(RIGHT, RIGHT, RIGHT)]
    assert len(maze.calls) == 1 and tree.judged_answers == 8 and tree.sampled_tokens == 8 * 6
    tree, _ = search(order="best_first", rounds=2)
    assert found(tree)[0][0] == LEFT  # left (0.6) is expanded, to its end


def test_samples_and_judgements_are_counted():
    tree, _ = search(width=2)
    found(tree)
    assert (tree.sampled_tokens, tree.judged_answers) == (2 * 2 + 4 * 2 + 4 * 2, 2 + 4 + 4)
    tree, _ = search(expand=1, rounds=1)
    assert found(tree) == [(LEFT, LEFT, LEFT)]
    assert (tree.sampled_tokens, tree.judged_answers) == (6, 0)


def test_answer_stays_within_max_tokens():
    tree, _ = search(width=2)
    (row,) = tree.generate([[9]], [0], Sampling(max_tokens=3, temperature=1.0, stop_ids=(END,)))
    assert len(row[0].ids) == 3 and row[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("boundary", "size", "ends"), [("blank_line", 2, (2, 4)), ("line", 1, (2, 4, 5))]
)
def test_step_ends_with_its_boundary_token(boundary: str, size: int, ends: tuple):
    tree, _ = search(boundary=boundary)
    assert tree._step_length([5, 5, 4, LEFT]) == size and tree._step_length([LEFT, RIGHT]) == 2
    assert tree.boundary_ids == ends  # tokens that hold a boundary stop the sampler at once


# with a real model


def test_cached_hidden_states_equal_the_trainers(model_folder: Path):
    algo, models = self_ac(model_folder)
    disturb(models, "policy")
    generator = HFGenerator(Weights(models), max_batch=2, cache_tokens=1000)
    algo.context.generator = generator
    head = models.weights("policy")["head.weight"]
    with torch.no_grad():
        head.copy_(torch.linspace(-1, 1, len(head)))
    states = [[5, 6, 7], [5, 6, 7, 8, 9, 10, 11], [5, 6, 12], [5, 6, 7, 8]]
    asked = [
        Sample([*ids, *algo.critic_prompt_ids], [0] * len(ids + algo.critic_prompt_ids))
        for ids in states
    ]
    rows = logprobs_and_values(models.forward("policy"), asked)
    alone = [float(values[-1]) for _, values in rows]
    assert algo.state_values(states) == pytest.approx(alone, abs=1e-5)
    store = generator.caches["policy"]
    assert (store.find(store.hash(*pad([states[1]]))) >= 0).all()
    assert algo.state_values(states) == pytest.approx(alone, abs=1e-5)


def test_too_long_state_is_refused(model_folder: Path):
    algo, models = self_ac(model_folder)
    room = models.module("policy").config.max_position_embeddings - len(algo.critic_prompt_ids)
    with pytest.raises(UserError, match=f"rollout.max_seq_len.*{room}"):
        algo.state_values([[5] * (room + 1)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    return trained(tmp_path_factory.mktemp("runs"), "self_ac", "it", "steps=1", "save_every=0")


def test_search_is_compared_with_best_of_n(run):
    chosen = ["search=tot", "search.boundary=line", "search.expand=3", "search.rounds=2"]
    record = evaluate_command(str(run.folder), chosen)
    ways = {
        name.split("/")[1].rsplit("_success", 1)[0] for name in record if name.endswith("_success")
    }
    (best_of,) = ways - {"sampling", "tree"}
    assert best_of.startswith("best_of_") and record["search"] == "beam" and record["episodes"] == 4
    assert record["search/sampling_extra_tokens"] == record["search/sampling_judged"] == 0
    assert record["search/tree_tokens"] > 2 * record["search/sampling_tokens"]
    gain = record["search/tree_success"] - record[f"search/{best_of}_success"]
    assert record["search/gain"] == pytest.approx(gain)
    assert record["search/gain_low"] <= gain <= record["search/gain_high"]
    n = int(best_of.removeprefix("best_of_"))
    assert n == max(2, round(record["search/tree_tokens"] / record["search/sampling_tokens"]))
    assert evaluate_command(str(run.folder), chosen) == record


@pytest.mark.slow
def test_search_needs_a_critic(run, tmp_path: Path):
    shown = CliRunner().invoke(app, ["eval", str(run.folder), "search=tott"])
    assert shown.exit_code == 2 and "'tot'" in shown.output
    plain, here = [*settings(tmp_path, "sft", "it"), "search=tot"], folders(tmp_path)
    served = ["search=tot", "hardware=vllm", "hardware.device=cpu"]
    for refused in (
        lambda: evaluate_command(None, plain, [here]),
        lambda: start(plain, config_dirs=[here]),
        lambda: evaluate_command(str(run.folder), served),
        lambda: check(load(run.config_file, ["search.order=deep", "search=tot"])),
    ):
        with pytest.raises(UserError):
            refused()
