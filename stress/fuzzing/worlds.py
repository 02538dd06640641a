"""Model output: texts for environments and for the roles of a language critic. An environment must
accept any text, so nothing may be raised, not even as a failed episode."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from agentrl_cli.algos.nlac.parse import PARSERS, strict_verdict
from agentrl_cli.algos.nlac.roles import Candidate, fill
from agentrl_cli.algos.self_ac import thought_ends
from agentrl_cli.config.compose import build, check, compose
from agentrl_cli.core.types import Episode, Turn, derive_seed
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.check import answer, opening
from agentrl_cli.envs.math.grader import grade
from agentrl_cli.envs.tau import tools
from agentrl_cli.report.episode import render
from agentrl_cli.runs import episode_files
from stress.fuzzing.mutations import Draw, mutated_texts
from stress.fuzzing.target import Target
from tests.builders.models import write_model
from tests.builders.nlac import PROMPTS, WON, bound, nlac, places, troupe, weights
from tests.builders.tau import tau_env, write_json

SKIPPED = ("algo", "hardware", "model", "rollout")
OF_SUMS = "0123456789+-*/(). "
MAX_ACTIONS = 3  # of an episode
GRADED = (
    "7", "-3/4", r"\frac{1}{2}", r"2\sqrt{3}", r"x^2+2x+1", "(1,2]", r"\{1, 2\}", "3.50",
    r"45^\circ", "1,234",
    r"\begin{pmatrix}1\\2\end{pmatrix}", "x=5", r"\text{Monday}", "12_{5}", r"0.\overline{3}",
    "10^{-3}", "5 km",
    r"\frac{\pi}{6}", "2 1/3", r"\pm 4", "50\\%", r"3\times10^{5}", r"\text{A}", "x \\le 5",
    r"\boxed{3}",
)  # fmt: skip
SUMS = (
    "1+2",
    "2 * (3 - 4.5) / 7",
    "-(1)",
    "1e5*3",
    "3 // 2",
    "((((1))))",
    "10/3*3",
    ".5+5.",
    "2**10",
    "1,2",
    "f(2)",
)
FORECASTS = ("It says yes. Success.", "No. Failure.", "I cannot tell. Success", "Then: Failure!?")
CRITIQUES = ("Optimality: Yes. It wins.", "Optimality: No. It loses {badly}.", " Optimality: No")
ACTIONS = (
    "Is it a dog?",
    "Thought one.\n\nThought two.\n\nIs it a cat?",
    "<think>\nx\n</think>\n\nIs it an owl?",
)
CALLS = (
    '{"name": "get_order_details", "arguments": {"order_id": "#W1"}}',
    'Thought:\nlook.\nAction:\n{"name": "calculate", "arguments": {"expression": "1 + 2 * 3"}}',
    '<tool_call>{"name": "think", "arguments": "{\\"thought\\": \\"x\\"}"}</tool_call>',
    '{"function": {"name": "cancel_pending_order", "parameters": {"order_id": "#W2", "reason": '
    '"x"}}}',
    '[{"name": "find_user_id_by_email", "kwargs": {"email": "ada@example.org"}}]',
    "respond(Hello.)",
    '{"name": "respond", "arguments": {"content": "Shall I cancel order #W1? (yes/no)"}}',
    '{"name": "book_reservation", "arguments": {"user_id": "bo_dahl_2", "origin": "SFO", '
    '"destination": "DEN", '
    '"flight_type": "one_way", "cabin": "economy", "flights": [{"flight_number": "HAT1", '
    '"date": "2024-05-16"}], '
    '"passengers": [{"first_name": "Bo", "last_name": "Dahl", "dob": "1980-01-01"}], '
    '"payment_methods": '
    '[{"payment_id": "credit_card_1", "amount": 40}], "total_baggages": 1, "nonfree_baggages": 0, '
    '"insurance": "no"}}',
    '{"name": "exchange_delivered_order_items", "arguments": {"order_id": "#W1", "item_ids": '
    '["1"], '
    '"new_item_ids": ["2"], "payment_method_id": "credit_card_1"}}',
)  # fmt: skip
Case = tuple[str, int, tuple[str, ...]]  # the world, the task's number and the actions


def target(home: Path) -> Target:
    """Return the target of environments with damaged expert actions."""
    played = list(_worlds(home))
    texts = [_expert_texts(env) for _, env in played]

    @st.composite
    def cases(draw: Draw) -> Case:
        number = draw(st.integers(0, len(played) - 1))
        said = draw(st.lists(mutated_texts(texts[number]), min_size=1, max_size=MAX_ACTIONS))
        return played[number][0], draw(st.integers(0, 20)), tuple(said)

    worlds = dict(played)
    return Target(cases(), lambda case: _play(worlds[case[0]], case, home), lambda case: (), ())


def _worlds(home: Path) -> list[tuple[str, Env]]:
    names = ["env=twentyq", "env=twentyq_full", "env=tau_mini", "env=wiki", "env=wiki_full"]
    names += ["env=wiki env.task=article"]
    names += [f"env=arithmetic env.turn_mode={mode}" for mode in ("single", "thoughts", "retry")]
    found = [(name, build(check(compose(name.split()), skip=SKIPPED).env)) for name in names]
    services = write_json(home / "services")
    for domain in ("retail", "airline", "mini"):
        for style in ("react", "native", "call"):
            user = "scripted" if domain != "airline" else "silent"
            env = tau_env(domain, services, user=user, actions=style)
            found.append((f"{domain} {style}", env))
    return found


def _expert_texts(env: Env) -> list[str]:
    """Return the expert's actions in a few tasks."""
    texts: list[str] = list(CALLS if hasattr(env, "domain") else ())
    for task in (env.tasks("train") or env.tasks("test"))[:4]:
        env.reset(task, 0)
        for action in islice(env.expert(task) or (), 6):
            texts.append(action)
            if answer(env, action).done:
                break
    return texts


def _play(world: Env, case: Case, home: Path) -> None:
    """Play an episode with these actions, then write, read and show it."""
    env, (name, number, actions) = copy.copy(world), case
    tasks = env.tasks("train") or env.tasks("test")
    task = tasks[number % len(tasks)]
    seen, turns = opening(env, task, number), []
    for action in actions:
        step = answer(env, action)
        turns.append(Turn(seen, action, [], [], [], step.reward, step.done, info=step.info))
        seen = step.messages
        if step.done or step.truncated:
            break
    env.digest()
    env.summarise([episode := Episode(name, task, name, number, turns, final_observation=seen)])
    file = home / "episodes-000000.jsonl"
    episode_files.write(file, [episode])
    (read,) = episode_files.read_all(file)
    "\n".join(render(read, name)).encode()


def roles_target(home: Path) -> Target:
    """Return the target of role texts of NLAC, thoughts, answers to grade, and sums."""
    models = weights(nlac(), write_model(home / "model"))
    strict = PARSERS["strict"]
    readers: dict[str, tuple[Sequence[str], Callable[[str, str], object]]] = {
        "forecast": (
            FORECASTS,
            lambda one, two: Candidate(places(WON)[0], [], 1, [one, two], parser=strict).value,
        ),
        "critique": (CRITIQUES, lambda one, two: strict_verdict(one)),
        "prompt": (FORECASTS, lambda one, two: fill(PROMPTS.backup, response=one, forecast=two)),
        "thoughts": (ACTIONS, lambda one, two: thought_ends([one, two, one], 1)),
        "grade": (GRADED, grade),
        "sum": (SUMS, lambda one, two: _sum(one)),
        "roles": ((*FORECASTS, *CRITIQUES, *ACTIONS), lambda one, two: _refined(models, one, two)),
    }

    @st.composite
    def cases(draw: Draw) -> tuple[str, str, str]:
        name = draw(st.sampled_from(sorted(readers)))
        texts = mutated_texts(readers[name][0])
        return name, draw(texts), draw(st.one_of(texts, st.sampled_from(readers[name][0])))

    def run(case: tuple[str, str, str]) -> None:
        name, one, two = case
        readers[name][1](one, two)

    return Target(cases(), run, lambda case: (), ())


def _sum(text: str) -> None:
    """Compute a sum as the tools do, which accept no other characters. Python's own errors are
    allowed."""
    try:
        json.dumps(tools.evaluate("".join(c for c in text if c in OF_SUMS)))
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, ValueError, MemoryError):
        pass


def _refined(models: Any, one: str, two: str) -> None:
    """Run the policy improvement of an update, in which every role writes one of two texts."""
    one, two = (text.encode("utf-8", "replace").decode() for text in (one, two))
    names = ("forecast", "evaluate", "refine", "act", "backup")
    algo = bound(
        nlac(require_optimal=True, num_forecasts=2, num_refinements=2),
        troupe(**{name: [one, two] for name in names}),
        models,
    )
    roles = algo.roles
    roles.begin_stream("fuzz", derive_seed(one, two))
    turns = places(WON)
    actions = roles.act(turns)
    forecasts = roles.forecast(turns, actions, 2)
    rows = zip(turns, actions, forecasts, strict=True)
    first = [Candidate(turn, ids, 1, row, row, parser=roles.parser) for turn, ids, row in rows]
    algo.selector.refine(first)
