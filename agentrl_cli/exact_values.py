"""Measure a critic against the exact values of a small environment.

`env.starts`, `env.transitions` and `env.actions` (see envs/courier.py) state the whole model of the
environment. The policy's action probabilities are read from its log-probs, so Q and V follow by
dynamic programming, without sampling. The tree has one node per sequence of messages and actions.

`run_arm` trains one arm of a diagnosis. An algorithm that replays episodes starts with those of a
scripted, more careful courier, so that the values of the policy and of the behaviour differ.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from numbers import Real
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from agentrl_cli.algos.losses import group_advantages
from agentrl_cli.algos.samples import TurnRef, completion_sample
from agentrl_cli.config.compose import ConfigDirs, compose_checked
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode, Message, Task, Turn
from agentrl_cli.envs.courier import Courier, CourierState
from agentrl_cli.models.forward import token_logprobs
from agentrl_cli.training.build import build_parts
from agentrl_cli.training.loop import update

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentrl_cli.training.build import Parts

Row = dict[str, float]  # one measurement
Numbers = Sequence[float]
Route = list[tuple[int, int]]  # nodes and the actions taken there
Probabilities = Sequence[Sequence[float]]  # [nodes, actions]
MAX_NODES = 20_000
MIN_COVERAGE = 0.5  # of the first policy by the listed actions
CLEAR_GAP = 0.1  # between the exact values of two actions that a critic must rank
SAMPLED_EPISODES = 256  # of the policy, for the signs of advantages
SCORED_STATES = 24  # by number of turns left
CARELESS = 0.1  # probability with which the scripted courier takes a closed road
DECIDING = 0.05  # least |advantage| of a deciding turn


@dataclass
class Node:
    """A state in which the agent acts. `turns[a]` is the turn that takes action number a, in an
    episode that ends with it; `children[a]` has the next nodes with their probabilities, or none
    if the episode ends, with the expected reward `rewards[a]`."""

    task: Task
    state: CourierState
    path: tuple[Turn, ...]  # the turns before
    parent: tuple[int, int] | None  # the node and the action before
    turns: list[TurnRef] = field(default_factory=list)
    children: list[list[tuple[float, int]]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Values:
    """Exact values of one policy. `q` and `policy` are [nodes, actions]. `v`, `reach` (the
    probability of visiting the node in an episode) and `start` (of starting there) are [nodes]."""

    policy: np.ndarray
    q: np.ndarray
    v: np.ndarray
    reach: np.ndarray
    start: np.ndarray

    @property
    def success(self) -> float:
        """The probability of success of an episode."""
        return float(self.start @ self.v)


class Tree:
    """All states of the train tasks."""

    def __init__(self, parts: Parts) -> None:
        """Raises UserError if the environment does not state its model or is too large."""
        env = parts.make_env()
        if not isinstance(env, Courier):
            line = "the exact values of this environment are not known; use env=courier"
            raise UserError(line, code="not-enumerable")
        self.env = env
        self.parts, self.nodes = parts, list[Node]()
        self.start: dict[int, float] = {}  # node -> probability of starting there
        tasks = env.tasks("train")
        for task in tasks:
            for probability, state in self.env.starts(task):
                self.start[self._add(Node(task, state, (), None))] = probability / len(tasks)
        for i, node in enumerate(self.nodes):  # grows while it is read
            for a, action in enumerate(self.env.actions):
                self._expand(i, node, a, action)

    def _add(self, node: Node) -> int:
        if len(self.nodes) >= MAX_NODES:
            line = f"the environment has more than {MAX_NODES:,} states"
            raise UserError(
                f"{line}; lower env.max_turns or set env.weather=false", code="too-large"
            )
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _expand(self, i: int, node: Node, a: int, action: str) -> None:
        first = [] if node.path else [Message("system", self.env.system())]
        observation = [*first, Message("user", node.state.text)]
        turn = Turn(observation, action, [], [], [])
        nexts = self.env.transitions(node.state, action)
        last = nexts[0][1]
        path = (*node.path, turn)
        if last.turns_left:
            children = [(p, self._add(Node(node.task, s, path, (i, a)))) for p, s in nexts]
            node.children.append(children)
            node.rewards.append(0.0)
        else:
            turn.reward, turn.done = last.safe, True
            turn.info = {"success": last.safe > 0.5}
            node.children.append([])
            node.rewards.append(last.safe)
        turns = copies(path)
        self.parts.chat.encode_turns(turns)
        name = f"{node.task.id}-{len(self.nodes)}-{action}"
        final = [Message("user", last.text)]
        episode = Episode(name, node.task, name, 0, turns, final_observation=final)
        node.turns.append(TurnRef(episode, len(turns) - 1))

    def values(self, policy: Probabilities) -> Values:
        """Return the exact values of a policy, given by its action probabilities in every node."""
        table = np.array(policy)
        q, v = np.zeros(table.shape), np.zeros(len(table))
        for i in reversed(range(len(self.nodes))):  # children come after their parent
            node = self.nodes[i]
            for a, (reward, children) in enumerate(zip(node.rewards, node.children, strict=True)):
                q[i, a] = reward + sum(p * v[child] for p, child in children)
            v[i] = table[i] @ q[i]
        start = np.zeros(len(table))
        start[list(self.start)] = list(self.start.values())
        reach = start.copy()
        for i, node in enumerate(self.nodes):
            for a, children in enumerate(node.children):
                for p, child in children:
                    reach[child] += reach[i] * table[i, a] * p
        return Values(table, q, v, reach, start)

    def policy_values(self) -> Values:
        """Return the exact values of the current policy. Text that is not a listed action counts as
        a loss, also a road in another spelling."""
        turns = [turn for node in self.nodes for turn in node.turns]
        samples = [completion_sample(turn.state_ids, turn.action_ids) for turn in turns]
        rows = token_logprobs(self.parts.models.forward("policy"), samples)
        table = np.exp([sum(row) for row in rows]).reshape(len(self.nodes), -1)
        return self.values(table.tolist())

    def require_listed_actions(self) -> None:
        """Raise UserError if the policy mostly says anything but the listed actions."""
        exact = self.policy_values()
        coverage = float(exact.policy[exact.start > 0].sum(1).mean())
        if coverage < MIN_COVERAGE:
            line = f"the policy says one of {', '.join(self.env.actions)} with probability"
            remedy = "a diagnosis needs a policy that can be enumerated; train it by SFT first"
            raise UserError(f"{line} {coverage:.2f}; {remedy}", code="not-enumerable")

    def careful_policy(self, careless: float) -> Probabilities:
        """Return the probabilities of a scripted policy that takes a closed road with probability
        `careless`, and each open road equally often."""
        rows = []
        for node in self.nodes:
            closed = node.state.closed_action
            open_roads = len(self.env.actions) - 1
            rows.append(
                [
                    careless if action == closed else (1 - careless) / open_roads
                    for action in self.env.actions
                ]
            )
        return rows

    def sample(self, policy: Probabilities, count: int, seed: int) -> list[tuple[Route, Episode]]:
        """Return episodes of a policy with sampled outcomes, each with its route."""
        rng, found = random.Random(seed), list[tuple[Route, Episode]]()
        for number in range(count):
            (i,) = rng.choices(list(self.start), list(self.start.values()))
            while True:
                (a,) = rng.choices(range(len(self.env.actions)), policy[i])
                if not (children := self.nodes[i].children[a]):
                    break
                (i,) = rng.choices([c for _, c in children], [p for p, _ in children])
            success = rng.random() < self.nodes[i].rewards[a]
            episode = self.nodes[i].turns[a].episode
            turns = copies(episode.turns)
            turns[-1].reward, turns[-1].info = float(success), {"success": success}
            name = f"drawn-{number}"
            drawn = replace(episode, id=name, group=name, turns=turns)
            found.append((self.route(i, a), drawn))
        return found

    def route(self, node: int, action: int) -> Route:
        """Return the nodes and actions from the start to this action, in order."""
        steps = [(node, action)]
        while parent := self.nodes[steps[0][0]].parent:
            steps.insert(0, parent)
        return steps

    def whole_episodes(self) -> list[tuple[int, int, Episode]]:
        """Return every possible episode with the node and the action that end it."""
        return [
            (i, a, node.turns[a].episode)
            for i, node in enumerate(self.nodes)
            for a, children in enumerate(node.children)
            if not children
        ]


def copies(turns: Sequence[Turn]) -> list[Turn]:
    """Return copies of the turns, which algorithms may annotate."""
    return [replace(turn, info=dict(turn.info)) for turn in turns]


# --- scores ---


Scores = dict[int, np.ndarray]  # node -> values [repetitions, actions] by a critic


def auc_by_distance(tree: Tree, exact: Values, scores: Scores) -> dict[int, float]:
    """Return, by the number of turns left, the share of pairs of actions of one state that a critic
    ranks as their exact values do. Ties count half. Pairs with nearly equal values do not count."""
    found: dict[int, list[float]] = {}
    for i, rows in scores.items():
        for a, b in permutations(range(rows.shape[1]), 2):
            if exact.q[i, a] - exact.q[i, b] >= CLEAR_GAP:
                right = (rows[:, a] > rows[:, b]) + 0.5 * (rows[:, a] == rows[:, b])
                found.setdefault(tree.nodes[i].state.turns_left, []).append(float(right.mean()))
    return {distance: mean(pairs) for distance, pairs in sorted(found.items())}


def open_means(tree: Tree, tables: Sequence[Mapping[int, np.ndarray] | np.ndarray]) -> list[float]:
    """Return the mean of each table over the open roads of the states in which the letter is not
    lost. Each number of turns left counts equally."""
    found = []
    for table in tables:
        by_distance: dict[int, list[float]] = {}
        for i, node in enumerate(tree.nodes):
            if node.state.safe > 0:
                closed = node.state.closed_action
                is_open = [action != closed for action in tree.env.actions]
                row = by_distance.setdefault(node.state.turns_left, [])
                row.append(float(np.mean(table[i][..., is_open])))
        found.append(mean(map(mean, by_distance.values())))
    return found


def r_squared(exact: np.ndarray, estimate: np.ndarray, weights: np.ndarray) -> float:
    """Return the share of the weighted variance of `exact` that `estimate` explains."""
    weights = weights / weights.sum()
    spread = float(weights @ (exact - weights @ exact) ** 2)
    return 1 - float(weights @ (exact - estimate) ** 2) / spread if spread else 0.0


def mean_by_turn(tree: Tree, exact: Values) -> np.ndarray:
    """Return the mean exact value of all states with the same number of turns left: the best
    prediction that only counts turns."""
    left = np.array([node.state.turns_left for node in tree.nodes])
    found = np.zeros(len(left))
    for distance in set(left.tolist()):
        same = left == distance
        weights = exact.reach[same]
        found[same] = float(weights @ exact.v[same]) / float(weights.sum())
    return found


def sign_accuracy(exact: Values, routes: Sequence[Route], advantages: Sequence[Numbers]) -> float:
    """Return the share of episodes whose estimated advantages have the right sign at the deciding
    turn, the one with the largest exact advantage. Episodes without such a turn do not count."""
    right = []
    for route, estimates in zip(routes, advantages, strict=True):
        truths = [float(exact.q[i, a] - exact.v[i]) for i, a in route]
        at = max(range(len(truths)), key=lambda k: abs(truths[k]))
        if abs(truths[at]) >= DECIDING:
            right.append(float(estimates[at] * truths[at] > 0))
    return mean(right)


# --- one arm ---


@dataclass(frozen=True)
class Arm:
    """One training run of a diagnosis: `critic_updates` of the critic alone, then `policy_updates`
    of critic and policy. An algorithm that replays episodes starts with those of a scripted
    courier."""

    name: str
    overrides: list[str]
    critic_updates: int
    policy_updates: int
    every: int
    shuffles_rewards: bool = False
    config_dirs: ConfigDirs = None


def arms(cfg: DictConfig, base: Arm) -> list[Arm]:
    """Return the arms of a diagnosis: the algorithm as configured, and its controls. Demonstrations
    are used without rewards, so an algorithm that learns from them has no control."""
    if cfg.data.demos is not None:
        return [base]
    if "ablation" not in cfg.algo.get("advanced", {}):
        return [base, replace(base, name="shuffled rewards", shuffles_rewards=True)]
    of_critic = replace(base, policy_updates=0)  # says nothing of the policy
    named = {
        "monte carlo": (of_critic, ["algo.advanced.td_lambda=1"]),
        "shuffled next states": (of_critic, ["algo.advanced.ablation=shuffled_next_states"]),
        "shuffled outcomes": (base, ["algo.advanced.ablation=shuffled_outcomes"]),
        "frozen critic": (
            base,
            ["algo.advanced.ablation=frozen_critic", "algo.separate_critic=true"],
        ),
    }
    controls = [
        replace(arm, name=name, overrides=[*base.overrides, *changes])
        for name, (arm, changes) in named.items()
    ]
    return [base, *filter(_is_valid, controls)]


def _is_valid(arm: Arm) -> bool:
    """Return whether the algorithm accepts the settings of a control; ablations may not."""
    try:
        compose_checked(arm.overrides, arm.config_dirs)
    except UserError:
        return False
    return True


def run_arm(arm: Arm) -> list[Row]:
    """Train an arm and return its measurements: before the first update and every few updates."""
    steps = arm.critic_updates + arm.policy_updates
    cfg = compose_checked([*arm.overrides, f"steps={steps}"], arm.config_dirs)
    if "critic_warmup" in cfg.algo:
        cfg.algo.critic_warmup = arm.critic_updates
    parts = build_parts(cfg, None)
    tree = Tree(parts)
    tree.require_listed_actions()
    behaviour = tree.policy_values()
    if parts.algo.replay_capacity:
        behaviour = tree.values(tree.careful_policy(CARELESS))
        count = parts.algo.replay_capacity
        drawn = tree.sample(behaviour.policy.tolist(), count, cfg.seed)
        episodes = [episode for _, episode in drawn]
        parts.buffer.add(shuffle_rewards(episodes, 0) if arm.shuffles_rewards else episodes)
        parts.data = replace(parts.data, offline=parts.algo.learns_offline)
    if arm.shuffles_rewards:
        parts.collector.collect = partial(collect_and_shuffle, parts.collector.collect)
    rows = [measure(parts, tree, behaviour)]
    while parts.step < steps:
        if parts.step == arm.critic_updates:
            parts.data = replace(parts.data, offline=False)
        update(parts)
        if parts.step % arm.every == 0 or parts.step in (steps, arm.critic_updates):
            rows.append(measure(parts, tree, behaviour))
    return rows


def collect_and_shuffle(
    collect: Callable[[int, int], list[Episode]], step: int, group_size: int
) -> list[Episode]:
    return shuffle_rewards(collect(step, group_size), step)


def shuffle_rewards(episodes: list[Episode], seed: int) -> list[Episode]:
    """Shuffle the final rewards of episodes in place: a critic then has nothing to learn."""
    ends = [(episode.turns[-1].reward, episode.success) for episode in episodes]
    random.Random(seed).shuffle(ends)
    for episode, (reward, success) in zip(episodes, ends, strict=True):
        last = episode.turns[-1]
        last.reward, last.info = reward, {**last.info, "success": success}
    return episodes


def auc_keys(row: Row) -> list[str]:
    """Return the keys of the AUC by turns left, in order."""
    return sorted(key for key in row if key.startswith("auc_"))


def rows_of_critic(rows: list[Row], critic_updates: int) -> list[Row]:
    """Return the measurements before the policy trains or, without updates of the critic alone, all
    of them. Figures of a critic are those of the last."""
    return [row for row in rows if row["update"] <= critic_updates or not critic_updates]


def measure(parts: Parts, tree: Tree, behaviour: Values) -> Row:
    """Return the success of the policy and the scores of the critic, by exact values."""
    exact = tree.policy_values()
    row = {"update": float(parts.step), "success": exact.success}
    try:
        scores = action_scores(parts, tree)
    except UserError as error:
        if error.code != "no-critic":
            raise
        return row | state_metrics(parts, tree, exact)
    row |= {f"auc_{d}": auc for d, auc in auc_by_distance(tree, exact, scores).items()}
    names = ("estimate", "policy_value", "behaviour_value")
    return row | dict(zip(names, open_means(tree, [scores, exact.q, behaviour.q]), strict=True))


def action_scores(parts: Parts, tree: Tree) -> Scores:
    """Return the critic's value of every action of the states in which the letter is not lost.
    Critics may sample, so states that are few are scored repeatedly: each number of turns left gets
    about as many scores."""
    alive = [i for i, node in enumerate(tree.nodes) if node.state.safe > 0]
    counts = Counter(tree.nodes[i].state.turns_left for i in alive)
    repetitions = {i: SCORED_STATES // counts[tree.nodes[i].state.turns_left] or 1 for i in alive}
    turns = [turn for i in alive for _ in range(repetitions[i]) for turn in tree.nodes[i].turns]
    found = parts.algo.action_values(turns)
    require_numbers("action_values", found, len(turns))
    values, width = iter(found), len(tree.env.actions)
    return {
        i: np.array([[next(values) for _ in range(width)] for _ in range(repetitions[i])])
        for i in alive
    }


def require_numbers(method: str, found: object, count: int) -> None:
    """Raise UserError unless `found` is a list of `count` finite numbers, which a method of the
    algorithm returned or wrote into `turn.info`."""
    rows = list(found) if isinstance(found, Sequence | np.ndarray) else []
    numbers = [x for x in rows if isinstance(x, Real) and math.isfinite(x)]
    if len(numbers) != len(rows) or len(rows) != count:
        line = f"`{method}` of the algorithm must give a finite number for each of {count} turns"
        raise UserError(f"{line}, not {shorten(repr(found), 60)}", code="not-a-number")


def state_metrics(parts: Parts, tree: Tree, exact: Values) -> dict[str, float]:
    """Return the scores of a critic of states, whose V and advantages `annotate` writes into the
    turns of all possible episodes. An action is scored by the V of the states that follow, so the
    last turn has no score. Raises UserError for an algorithm without a critic."""
    ends = tree.whole_episodes()
    parts.algo.annotate([episode for _, _, episode in ends])
    turns = [turn for _, _, episode in ends for turn in episode.turns]
    if not any("value" in turn.info for turn in turns):
        line = "this algorithm has no critic; choose one that has, such as nlac, self_ac or ppo"
        raise UserError(line, code="no-critic")
    for key in ("value", "advantage"):
        require_numbers(f"annotate ({key})", [turn.info.get(key) for turn in turns], len(turns))
    v = np.zeros(len(tree.nodes))
    for last, a, episode in ends:
        for (i, _), turn in zip(tree.route(last, a), episode.turns, strict=True):
            v[i] = turn.info["value"]
    drawn = tree.sample(exact.policy.tolist(), SAMPLED_EPISODES, parts.collector.seed)
    routes, episodes = map(list, zip(*drawn, strict=True))
    parts.algo.annotate(episodes)
    advantages = [[turn.info["advantage"] for turn in episode.turns] for episode in episodes]
    rewards, tasks = [e.reward for e in episodes], [e.task.id for e in episodes]
    outcome = group_advantages(rewards, tasks, normalise=False)
    same_at_every_turn = [[a] * len(r) for a, r in zip(outcome, routes, strict=True)]
    scores = {
        i: np.array([[sum(p * v[child] for p, child in row) for row in node.children]])
        for i, node in enumerate(tree.nodes)
        if node.state.safe > 0 and any(node.children)
    }
    return {
        **{f"auc_{d}": auc for d, auc in auc_by_distance(tree, exact, scores).items()},
        "bias": float(exact.reach @ (v - exact.v) / exact.reach.sum()),
        "r2": r_squared(exact.v, v, exact.reach),
        "r2_turn": r_squared(exact.v, mean_by_turn(tree, exact), exact.reach),
        "sign": sign_accuracy(exact, routes, advantages),
        "sign_grpo": sign_accuracy(exact, routes, same_at_every_turn),
    }
