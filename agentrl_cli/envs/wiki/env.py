"""The environment: a question and an encyclopedia to find the answer and its proof in, or a topic
whose lines are to be collected. Running out of turns loses the episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import UserError, require_at_least, require_fraction
from agentrl_cli.core.types import Episode, Message, Step, Task, derive_seed
from agentrl_cli.envs.base import Env, require_split
from agentrl_cli.envs.wiki import measures
from agentrl_cli.envs.wiki.actions import parse
from agentrl_cli.envs.wiki.answers import f1, is_right, proves
from agentrl_cli.envs.wiki.browser import Browser
from agentrl_cli.envs.wiki.expert import expert_actions
from agentrl_cli.envs.wiki.generator import built_in
from agentrl_cli.envs.wiki.pages import Encyclopedia
from agentrl_cli.envs.wiki.progress import Search
from agentrl_cli.envs.wiki.schema import WORLDS
from agentrl_cli.envs.wiki.user_data import read_user_data
from agentrl_cli.envs.wiki.worlds import WikiWorld

TASKS = ("question", "article")
REWARDS = ("both", "answer", "evidence")
ACTIONS = "SEARCH words, OPEN link, FIND words, BACK, SAVE lines, or SUBMIT"
SYSTEMS = {
    "question": "Search the encyclopedia and submit the answer. Save the lines that prove it. "
    f"The last line of a turn acts: {ACTIONS} answer.",
    "article": "Collect the lines about the topic: search the encyclopedia and save the lines. "
    f"The last line of a turn acts: {ACTIONS}.",
}
UNKNOWN = f"Unknown action. Use {ACTIONS}."
OVER = "The search is over."


@dataclass(kw_only=True)
class Wiki(Env):
    """One search. `reward` pays 1 for the right answer (`answer`), for saved lines that prove it
    (`evidence`), or for both at once (`both`); an article pays the F1 of what was saved."""

    data: str | None
    test_data: str | None
    test_share: float
    world: str
    world_seed: int
    pages: int
    questions: int
    test_questions: int
    task: str
    reward: str
    max_turns: int
    page_lines: int
    page_results: int
    val_share: float = 0.0
    val_questions: int = 0
    search: Search | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, known in (("world", WORLDS), ("task", TASKS), ("reward", REWARDS)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"env.{name} is '{value}'; use one of {', '.join(known)}")
        require_at_least(1, turns=self.max_turns, page_lines=self.page_lines)
        require_at_least(1, page_results=self.page_results, questions=self.questions)
        require_at_least(1, test_questions=self.test_questions)
        require_at_least(0, val_questions=self.val_questions)
        require_fraction(test_share=self.test_share, val_share=self.val_share)
        if self.test_data is not None and self.data is None:
            raise UserError("env.test_data needs env.data, to whose pages it asks; give both")

    def wiki(self, split: str) -> WikiWorld:
        """The pages and the tasks, made or read once in a process and not kept on the instance. The
        questions of `val` are those that another built-in encyclopedia has for `test`."""
        if self.data is not None:
            shares = (self.test_share, self.val_share, self.world_seed)
            return read_user_data(self.data, self.test_data, *shares, self.reward != "answer")
        if split == "val":
            other, counts = derive_seed("wiki", split, self.world_seed), (1, self.val_questions)
            return built_in(self.world, other, self.pages, counts).only_test_as(split)
        counts = (self.questions, self.test_questions)
        return built_in(self.world, self.world_seed, self.pages, counts)

    @property
    def encyclopedia(self) -> Encyclopedia:
        """What there is to read in the episode in progress."""
        return self.wiki(self.search.split if self.search else "train").encyclopedia

    def system(self) -> str:
        """What is to be done, and the actions."""
        return SYSTEMS[self.task]

    def tasks(self, split: str) -> list[Task]:
        """The questions or the topics of a split; of the built-in world no page that one of `train`
        is about, leads through or asks for is one of `test`."""
        require_split(split)
        wiki = self.wiki(split)
        rows = wiki.questions if self.task == "question" else wiki.articles
        if self.data is not None and not any(rows.values()):
            needed = "'question'" if self.task == "question" else "'topic'"
            raise UserError(f"the data has no row with a {needed}; add one or change env.task")
        return [Task(f"{wiki.name}-{row['id']}", split, row) for row in rows[split]]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Ask. Nothing is open yet."""
        browser = Browser(self.page_lines, self.page_results)
        self.search = Search(task.data, browser, split=task.split)
        return [Message("user", f"{task.data['question']} {self.max_turns} left.")]

    def step(self, action: str) -> Step:
        """What the browser shows; SUBMIT or the last of `turns` ends the episode. After the end
        nothing happens. RuntimeError before `reset`."""
        search = self._running()
        if search.over:
            return Step([Message("user", OVER)], 0.0, True, False, {"invalid": True})
        read = parse(action)
        search.turn += 1
        info: dict[str, Any] = {"action": read.verb or "unknown", "invalid": False}
        place = (str(search.browser.view), read.verb, read.argument.casefold())
        info["repeated"] = bool(read.verb) and place in search.done_before
        search.done_before.add(place)
        if read.verb == "submit" and (read.argument or self.task == "article"):
            return self._end(search, read.argument, info)
        text, could = self._browse(read.verb, read.argument)
        info["invalid"] = not could
        if search.turn == self.max_turns:
            return self._end(search, None, info)
        return Step([Message("user", self._with_turns(text))], 0.0, False, False, info)

    def expert(self, task: Task) -> Iterator[str]:
        """From line to line of the proof by links, one step back, or a search; then the answer."""
        return expert_actions(self._running(), self.encyclopedia)

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Right answers, proofs, the F1 of what was saved, and success by kind of question."""
        return measures.summarise(episodes)

    def _running(self) -> Search:
        if self.search is None:
            raise RuntimeError("no search is running: call reset")
        return self.search

    def _browse(self, verb: str, argument: str) -> tuple[str, bool]:
        if not verb:
            return UNKNOWN, False
        if verb == "submit":
            return "SUBMIT needs an answer.", False
        return self._running().browser.act(self.encyclopedia, verb, argument)

    def _with_turns(self, text: str) -> str:
        """The observation and the turns that are left, in a line of their own behind several."""
        between = "\n" if "\n" in text else " "
        return f"{text}{between}{self.max_turns - self._running().turn} left."

    def _end(self, search: Search, answer: str | None, info: dict[str, Any]) -> Step:
        """The last words and the reward; `answer` is None where the turns ran out, which wins
        nothing."""
        search.over, in_time = True, answer is not None
        saved, proof, answers = search.browser.saved, search.proof, search.task["answers"]
        right = in_time and (self.task == "article" or is_right(answer or "", answers))
        proved, score = in_time and proves(saved, proof), f1(saved, proof) if in_time else 0.0
        info["privileged"] = {"right": right, "proved": proved, "f1": score}
        if self.task == "article":
            found = len({line for step in proof for line in step} & {*saved})
            reward, said = score, f"You saved {found} of {len(proof)} lines."
        else:
            won = {"answer": right, "evidence": proved, "both": right and proved}
            verdict = "Right." if right else f"Wrong. It is {answers[0]}."
            reward, said = float(won[self.reward]), f"{verdict} {'P' if proved else 'Not p'}roved."
        info["success"] = reward == 1.0
        told = said if in_time else f"No turns left. {said}"
        return Step([Message("user", told)], reward, True, False, info)
