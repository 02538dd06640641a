"""Search an encyclopedia: find the answer to a question and save the lines that prove it, or
collect the lines about a topic. An episode that runs out of turns is lost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.statistics import interval_over_tasks
from agentrl_cli.core.types import Episode, Message, Step, Task, derive_seed
from agentrl_cli.envs.base import (
    Env,
    Instructions,
    episodes_by_task,
    expert_example,
    full_instructions,
    require_split,
)
from agentrl_cli.envs.wiki.browser import MAX_ARGUMENT, NEXT, PREVIOUS, Browser, parse
from agentrl_cli.envs.wiki.generator import built_in
from agentrl_cli.envs.wiki.pages import Encyclopedia, Line, WikiData, link_key, normalise
from agentrl_cli.envs.wiki.user_data import read_user_data

ACTIONS = "SEARCH words, OPEN link, FIND words, BACK, SAVE lines, or SUBMIT"
SYSTEMS = {
    "question": "Search the encyclopedia and submit the answer. Save the lines that prove it. "
    f"The last line of a turn acts: {ACTIONS} answer.",
    "article": "Collect the lines about the topic: search the encyclopedia and save the lines. "
    f"The last line of a turn acts: {ACTIONS}.",
}
FULL_SYSTEMS = {
    "question": "Answer a question with the help of an encyclopedia. Before you submit the answer, "
    "open the pages and save the lines that prove it. The last line of each turn is your action: "
    f"{ACTIONS} answer.",
    "article": "Find every line of the encyclopedia that names the topic, and save it. "
    f"The last line of each turn is your action: {ACTIONS}.",
}
UNKNOWN = f"Unknown action. Use {ACTIONS}."
OVER = "The search is over."
MAX_PARTS_TURNED = 2  # a line further away is found by its words
EXAMPLE_QUESTIONS = 20  # of which the shortest with two lines of proof is the example
MAX_SAVED = 2  # lines that may be saved per step of a proof

Proof = Sequence[Collection[Line]]  # for each step the lines that prove it; one of them suffices


@dataclass
class Search:
    """The episode in progress. `done_before` are the past actions, each with its open view."""

    task: dict[str, Any]
    browser: Browser
    split: str
    turn: int = 0
    over: bool = False
    done_before: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def proof(self) -> list[list[tuple[str, int]]]:
        """For each step of the proof the lines that prove it."""
        return [[(title, number) for title, number in step] for step in self.task["proof"]]


@dataclass(kw_only=True)
class Wiki(Env):
    """One search in the built-in encyclopedia or in the user's pages."""

    data: Annotated[str | None, Field(description="Folder of .md or .txt pages with "
                    "questions.jsonl, or a file of HotpotQA or 2WikiMultiHopQA. null: the built-in "
                    "encyclopedia.")]  # fmt: skip
    test_data: Annotated[str | None, Field(description="Questions of the test split in the same "
                         "form. null: the splits of the data, or `test_share`.")]  # fmt: skip
    test_share: Annotated[float, Field(ge=0, le=1, description="Share of the questions in the test "
                          "split, if neither a row nor `test_data` sets it.")]  # fmt: skip
    world: Annotated[Literal["small", "full"], Field(description="Built-in encyclopedia.")]
    world_seed: Annotated[int, Field(description="Seed of the encyclopedia, or of your splits.")]
    pages: Annotated[int, Field(ge=40, le=1000, description="Approximate number of pages.")]
    questions: Annotated[int, Field(ge=1, description="Number of built-in train questions.")]
    test_questions: Annotated[int, Field(ge=1, description="Number of built-in test questions.")]
    task: Annotated[Literal["question", "article"], Field(description="question: answer and prove; "
                    "article: save the lines that name a topic.")]  # fmt: skip
    reward: Annotated[Literal["both", "answer", "evidence"], Field(description="Reward 1 for the "
                      "right answer (answer), for saved lines that prove it (evidence), or for "
                      "both (both). An article pays the F1 of its lines.")]  # fmt: skip
    max_turns: Annotated[int, Field(ge=1, description="Actions per episode, which is then lost.")]
    page_lines: Annotated[int, Field(ge=1, description="Lines of a page shown at a time.")]
    page_results: Annotated[int, Field(ge=1, description="Search results shown at a time.")]
    val_share: Annotated[float, Field(ge=0, le=1, description="Share of the other questions in the "
                         "val split, if no row sets it.")] = 0.0  # fmt: skip
    val_questions: Annotated[int, Field(ge=0, description="Number of built-in val questions, about "
                             "another encyclopedia.")] = 0  # fmt: skip
    instructions: Instructions = "short"
    search: Search | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_limits(self)
        if self.test_data is not None and self.data is None:
            line = "env.test_data needs env.data, the pages of its questions; set both"
            raise UserError(line, code="missing-data")

    def wiki(self, split: str) -> WikiData:
        """Return the pages and tasks of a split, cached per process and not kept on the instance.
        The built-in `val` questions are the test questions of another encyclopedia."""
        if self.data is not None:
            shares = (self.test_share, self.val_share, self.world_seed)
            return read_user_data(self.data, self.test_data, *shares, self.reward != "answer")
        if split in ("val", "example"):
            seed = derive_seed("wiki", split, self.world_seed)
            count = self.val_questions if split == "val" else EXAMPLE_QUESTIONS
            other = built_in(self.world, seed, self.pages, (1, count))
            questions, articles = {split: other.questions["test"]}, {split: other.articles["test"]}
            return WikiData(f"{other.name}-val", other.encyclopedia, questions, articles)
        counts = (self.questions, self.test_questions)
        return built_in(self.world, self.world_seed, self.pages, counts)

    @property
    def encyclopedia(self) -> Encyclopedia:
        """The encyclopedia of the episode in progress."""
        return self.wiki(self.search.split if self.search else "train").encyclopedia

    def system(self) -> str:
        """Return the instructions. The bundled model has its own for the small encyclopedia."""
        if self.instructions == "full":
            texts = full_instructions()["wiki"]
            turns = texts["turns"].format(max_turns=self.max_turns)
            parts = (texts[self.task], texts["actions"], texts["submit"][self.task], turns)
            return "\n".join(parts)
        is_full = self.world == "full" or self.data is not None
        return (FULL_SYSTEMS if is_full else SYSTEMS)[self.task]

    def example(self) -> list[Message]:
        """Return a short one of a few searches of the expert in another encyclopedia."""
        if self.instructions == "short":
            return []
        env = replace(self, data=None, test_data=None)
        if self.data is not None:
            env.world = "full"
        wiki = env.wiki("example")
        rows = (wiki.questions if self.task == "question" else wiki.articles)["example"]
        row = min(rows, key=lambda row: (len(row["proof"]) < 2, len(row["proof"])))
        played = expert_example(env, Task("example", "example", row))
        return [
            Message(m.role, in_words(m.content)) if m.role == "assistant" else m for m in played
        ]

    def tasks(self, split: str) -> list[Task]:
        """Return the questions or topics of a split. In the built-in encyclopedia no page that a
        train task is about, leads through or asks for serves a test task."""
        require_split(split)
        wiki = self.wiki(split)
        rows = wiki.questions if self.task == "question" else wiki.articles
        if self.data is not None and not any(rows.values()):
            needed = "'question'" if self.task == "question" else "'topic'"
            line = f"env.data has no row with a {needed}; add one or change env.task"
            raise UserError(line, code="no-tasks")
        return [Task(f"{wiki.name}-{row['id']}", split, row) for row in rows[split]]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Ask the question. No page is open."""
        browser = Browser(self.page_lines, self.page_results)
        self.search = Search(task.data, browser, task.split)
        return [Message("user", f"{task.data['question']} {self.max_turns} left.")]

    def step(self, action: str) -> Step:
        """Return the browser's observation. SUBMIT and the last turn end the episode. A step after
        the end is invalid and changes nothing. Raises RuntimeError before `reset`."""
        search = self._running()
        if search.over:
            return Step([Message("user", OVER)], 0.0, True, False, {"invalid": True})
        parsed = parse(action)
        verb, argument = parsed.verb, parsed.argument
        search.turn += 1
        place = (str(search.browser.view), verb, argument.casefold())
        info: dict[str, Any] = {
            "action": verb or "unknown",
            "invalid": False,
            "repeated": bool(verb) and place in search.done_before,
        }
        search.done_before.add(place)
        if verb == "submit" and (argument or self.task == "article"):
            return self._end(search, argument, info)
        if not verb:
            text, is_valid = UNKNOWN, False
        elif verb == "submit":
            text, is_valid = "SUBMIT needs an answer.", False
        else:
            text, is_valid = search.browser.act(self.encyclopedia, verb, argument)
        info["invalid"] = not is_valid
        if search.turn == self.max_turns:
            return self._end(search, None, info)
        between = "\n" if "\n" in text else " "
        text = f"{text}{between}{self.max_turns - search.turn} left."
        return Step([Message("user", text)], 0.0, False, False, info)

    def expert(self, task: Task) -> Iterator[str]:
        """Yield actions that find and save the proof, then the answer."""
        return expert_actions(self._running(), self.encyclopedia)

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return rates of right answers and proofs, the F1 of saved lines, and success by kind of
        question with intervals clustered by task. An unfinished episode counts as wrong."""
        if not episodes:
            return {}
        ends = [e.turns[-1].info.get("privileged", {}) if e.turns else {} for e in episodes]
        found = {
            "answered": sum(bool(end.get("right")) for end in ends) / len(ends),
            "proved": sum(bool(end.get("proved")) for end in ends) / len(ends),
            "evidence_f1": sum(float(end.get("f1", 0.0)) for end in ends) / len(ends),
        }
        kinds: dict[str, list[list[float]]] = defaultdict(list)
        for group in episodes_by_task(episodes):
            kinds[group[0].task.data["kind"]].append([float(e.success) for e in group])
        for kind, successes in sorted(kinds.items()):
            found |= interval_over_tasks(successes).metrics(f"kind_{kind}")
        return found

    def _running(self) -> Search:
        if self.search is None:
            raise RuntimeError("no search is running: call reset")
        return self.search

    def _end(self, search: Search, answer: str | None, info: dict[str, Any]) -> Step:
        """Return the verdict and the reward. `answer` is None if the turns ran out."""
        search.over, in_time = True, answer is not None
        saved, proof, answers = search.browser.saved, search.proof, search.task["answers"]
        right = in_time and (self.task == "article" or is_right(answer or "", answers))
        proved, score = in_time and proves(saved, proof), f1(saved, proof) if in_time else 0.0
        info["privileged"] = {"right": right, "proved": proved, "f1": score}
        if self.task == "article":
            found = len({line for step in proof for line in step} & {*saved})
            reward, text = score, f"You saved {found} of {len(proof)} lines."
        else:
            won = {"answer": right, "evidence": proved, "both": right and proved}
            verdict = "Right." if right else f"Wrong. It is {answers[0]}."
            reward, text = float(won[self.reward]), f"{verdict} {'P' if proved else 'Not p'}roved."
        info["success"] = reward == 1.0
        text = text if in_time else f"No turns left. {text}"
        return Step([Message("user", text)], reward, True, False, info)


def in_words(action: str) -> str:
    """Return the last line of an action as `Search: words`, which small models write more often
    than capital letters."""
    verb, _, argument = action.rpartition("\n")[2].partition(" ")
    return f"{verb.capitalize()}: {argument}" if argument else verb.capitalize()


# --- Scores of answers and saved lines ------------------------------------------------------------


def is_right(answer: str, answers: Iterable[str]) -> bool:
    """Return whether the answer equals one of `answers` after `normalise`, or exactly."""
    known, normalised = list(answers), normalise(answer)
    is_equal = bool(normalised) and normalised in map(normalise, known)
    return is_equal or answer.strip() in known


def proves(saved: Collection[Line], proof: Proof) -> bool:
    """Return whether the saved lines hold one for every step of the proof, and are at most twice as
    many as its steps, so that saving everything does not count."""
    return len(saved) <= MAX_SAVED * len(proof) and all(set(step) & set(saved) for step in proof)


def f1(saved: Collection[Line], proof: Proof) -> float:
    """Return the harmonic mean of precision (share of saved lines in the proof) and recall (share
    of steps with a saved line); 1 if nothing is to be saved and nothing is."""
    wanted = {line for step in proof for line in step}
    if not proof or not saved:
        return float(not proof and not saved)
    precision = sum(line in wanted for line in saved) / len(saved)
    recall = sum(bool(set(step) & set(saved)) for step in proof) / len(proof)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


# --- The expert reaches each line of the proof by a link, one step back, or a search --------------


def expert_actions(search: Search, pages: Encyclopedia) -> Iterator[str]:
    """Yield actions until the episode is over. Every line is shown before it is saved."""
    has_thoughts = pages.number_last and bool(search.task["answers"])
    for thought, action in _turns(search, pages):
        yield f"{thought}\n{action}" if has_thoughts else action


def _turns(search: Search, pages: Encyclopedia) -> Iterator[tuple[str, str]]:
    """Yield actions, each with its thought: the line that it acts on, or the plan to find it."""
    lines = [step[0] for step in search.proof]
    for title, group in groupby(lines, key=lambda line: line[0]):
        numbers = sorted({number for _, number in group})
        plan = ""
        if pages.number_last:  # a line has the form `The mother is Dalo.`
            plan = f"Look for the {pages.text((title, numbers[0])).split()[1]} of {title}."
        yield from ((plan, action) for action in _reach(search, pages, title))
        for number in numbers:
            yield from ((plan, action) for action in _turn_to(search, pages, number))
        if not search.over:
            shown = pages.numbered(pages.pages[title])
            recited = " ".join(shown[number - 1] for number in numbers)
            yield recited, f"SAVE {' '.join(map(str, numbers))}"
    answers = search.task["answers"]
    if not search.over and answers:
        yield f"{_compared(pages, lines)}It is {answers[0]}.", f"SUBMIT {answers[0]}"
    elif not search.over:
        yield "", "SUBMIT"


def _compared(pages: Encyclopedia, lines: list[Line]) -> str:
    found = [(line[0], re.fullmatch(r"The year is (\d+)\.", pages.text(line))) for line in lines]
    years = [f"{title} {year[1]}" for title, year in found if year is not None]
    return f"Of {', '.join(years)}. " if len(years) > 1 else ""


def _reach(search: Search, pages: Encyclopedia, title: str) -> Iterator[str]:
    browser, words = search.browser, search.task.get("topic", title)
    while not search.over and (browser.view is None or browser.view.title != title):
        part = browser.part_with(pages, title)
        if browser.view is not None and part is not None:
            links = browser.links(pages)
            if browser.view.part != part:
                yield f"OPEN {NEXT if browser.view.part < part else PREVIOUS}"
            elif links.get(link_key(title)) == title:
                yield f"OPEN {title}"
            else:
                yield f"OPEN {next(text for text, target in links.items() if target == title)}"
        elif len(browser.views) > 1 and title in browser.links(pages, browser.views[-2]).values():
            yield "BACK"
        else:
            yield f"SEARCH {words}"
            words = title


def _turn_to(search: Search, pages: Encyclopedia, number: int) -> Iterator[str]:
    """Turn the open page to the part with this line; a distant line is found by its words."""
    browser = search.browser
    while not search.over and browser.view is not None:
        part = (number - 1) // browser.page_lines
        if browser.view.part == part:
            return
        if abs(browser.view.part - part) > MAX_PARTS_TURNED:
            yield f"FIND {pages.text((browser.view.title, number))[:MAX_ARGUMENT]}"
            return
        yield f"OPEN {NEXT if browser.view.part < part else PREVIOUS}"
