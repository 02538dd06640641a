"""The environment: a user with a wish, tools over a database, a policy, τ-bench's reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.envs.tau import expert, measures
from agentrl_cli.envs.tau.actions import RESPOND, STYLES, Action, parse
from agentrl_cli.envs.tau.calls import call_tool
from agentrl_cli.envs.tau.conversation import Conversation
from agentrl_cli.envs.tau.data import SPLITS, TABLES, Domain, load_domain
from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.mini import mini_domain
from agentrl_cli.envs.tau.mini_user import MiniUser
from agentrl_cli.envs.tau.retail_user import RetailUser
from agentrl_cli.envs.tau.reward import reward_checks
from agentrl_cli.envs.tau.users import ChatFunction, HumanUser, LLMUser, SilentUser, User, agrees

USERS = ("scripted", "llm", "human", "silent")
DOMAINS = (*TABLES, "mini")
OVER = "The conversation is over."
REACT = """
# Tools
{tools}

# Form
Answer in exactly this form, with the action as valid JSON:
Thought:
<one line of reasoning>
Action:
{{"name": <the tool>, "arguments": <its arguments as a JSON object>}}

To speak to the user, the action is
{{"name": "respond", "arguments": {{"content": <what you say>}}}}
Make one call at a time, and never make up an argument.
"""


@dataclass(kw_only=True)
class TauBench(Env):
    """One conversation with a user of `domain` (retail, airline, mini).

    The scripted user follows the templated train tasks of retail alone, so with it the last
    `holdout` of those are the split test.
    """

    domain: str
    data: str | None
    user: str
    actions: str
    turns: int
    holdout: int
    llm: ChatFunction | None
    conversation: Conversation | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("domain", self.domain, DOMAINS),
            ("user", self.user, USERS),
            ("actions", self.actions, STYLES),
        ):
            if value not in known:
                raise UserError(f"env.{name} is '{value}'; use one of {', '.join(known)}")
        require_at_least(1, turns=self.turns)
        require_at_least(0, holdout=self.holdout)

    @property
    def domain_data(self) -> Domain:
        """The domain's data, read once in a process and not kept on the instance."""
        if self.domain == "mini":
            return mini_domain()
        if self.data is None:
            raise UserError(
                f"env.data is missing: τ-bench's {self.domain} data does not come with agentrl; "
                "give the folder of a checkout of sierra-research/tau-bench as env.data=FOLDER"
            )
        return load_domain(self.domain, self.data)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas, where the chat template shall show them."""
        return list(self.domain_data.schemas) if self.actions == "native" else []

    def system(self) -> str:
        """The policy; for `react` also the tools and the form of an action."""
        service = self.domain_data
        if self.actions == "react":
            return service.policy + REACT.format(tools=json.dumps(list(service.schemas)))
        return service.policy

    def tasks(self, split: str) -> list[Task]:
        """The tasks of train, dev or test; a domain may have none of a split."""
        if split not in SPLITS:
            raise UserError(f"split '{split}' is unknown; use one of {', '.join(SPLITS)}")
        tasks = self.domain_data.tasks
        if self.user != "scripted" or not self.holdout:
            return self._tasks(tasks[split], split, split)
        rows, kept = tasks["train"], max(0, len(tasks["train"]) - self.holdout)
        chosen = {"train": rows[:kept], "dev": (), "test": rows[kept:]}[split]
        return self._tasks(chosen, "train", split)

    def reset(self, task: Task, seed: int) -> list[Message]:
        """A fresh database and a user who speaks first."""
        user = self._user(task.data, seed)
        self.conversation = Conversation(task.data, Database(self.domain_data.tables), user)
        first = user.start()
        self.conversation.heard, self.conversation.fault = first.text, first.fault
        return [Message("user", first.text)]

    def step(self, action: str) -> Step:
        """A tool call or words for the user. After the end nothing happens: an invalid step without
        reward. RuntimeError before `reset`."""
        now = self._running()
        if now.over:
            return Step([Message("user", OVER)], 0.0, True, False, _info("", invalid=True))
        now.turn += 1
        parsed = parse(action, self.actions, self.domain_data.tools)
        info = _info(encodable(parsed.name), invalid=parsed.malformed)
        if now.turn == 1 and now.fault:
            info["fault"] = now.fault
        if parsed.name == RESPOND:
            message, done = self._speak(parsed.arguments["content"], info)
        else:
            message, done = self._call(parsed, info)
        reward = self._judge(info) if done else 0.0
        truncated = not done and now.turn >= self.turns
        now.over = done or truncated
        if now.over:
            info.setdefault("success", False)
        return Step([message], reward, done, truncated, info)

    def expert(self, task: Task) -> Iterator[str] | None:
        """The ground-truth actions with the replies that they need. RuntimeError before `reset`."""
        how = {"domain": self.domain, "user": self.user, "style": self.actions}
        return expert.expert_actions(self.domain_data, self._running(), **how)

    def digest(self) -> str | None:
        """τ-bench's hash of the database as the agent left it."""
        return self.conversation.database.digest() if self.conversation else None

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """pass^k, whose fault failures were, and what doing nothing would have won."""
        return measures.summarise(self.domain_data, episodes)

    def _tasks(self, rows: tuple[dict[str, Any], ...], source: str, split: str) -> list[Task]:
        return [Task(f"{self.domain}-{source}-{row['id']}", split, row) for row in rows]

    def _user(self, task: dict[str, Any], seed: int) -> User:
        if self.user == "silent":
            return SilentUser()
        if self.user == "human":
            return HumanUser(task["instruction"])
        if self.user == "llm":
            if self.llm is None:
                raise UserError("env.user=llm needs a model; name one as env.llm.model=NAME")
            return LLMUser(task["instruction"], self.llm, seed)
        if self.domain == "mini":
            return MiniUser(task, seed)
        names = [item["name"] for item in self.domain_data.tables.get("products", {}).values()]
        return RetailUser.of(task["instruction"], seed, names)

    def _running(self) -> Conversation:
        if self.conversation is None:
            raise RuntimeError("no conversation has begun: call reset")
        return self.conversation

    def _speak(self, words: str, info: dict[str, Any]) -> tuple[Message, bool]:
        now, words = self._running(), encodable(words)
        now.said.append(words)
        heard = now.user.reply(words)
        now.heard, now.allowed = heard.text, agrees(heard.text)
        if heard.fault:
            info["fault"] = heard.fault
        return Message("user", heard.text), heard.stops

    def _call(self, action: Action, info: dict[str, Any]) -> tuple[Message, bool]:
        now, service = self._running(), self.domain_data
        if action.problem:
            answer = f"Error: {action.problem}"
        else:
            info["invalid"] |= action.name not in service.tools
            info["unconfirmed"] = action.name in service.writes and not now.allowed
            answer = call_tool(
                service.tools, service.name, now.database, action.name, action.arguments
            )
        answer = encodable(answer)
        info["tool_error"] = answer.startswith("Error")
        if action.name in service.writes and not info["tool_error"]:
            now.allowed = False
        if self.actions == "react":
            return Message("user", f"API output: {answer}"), action.name == service.terminates
        return Message("tool", answer), action.name == service.terminates

    def _judge(self, info: dict[str, Any]) -> float:
        now = self._running()
        found = reward_checks(self.domain_data, now.task, now.database, now.said)
        info["success"] = all(found.values())
        info["privileged"] = found
        return float(info["success"])


def encodable(text: str) -> str:
    """The text with ? for lone surrogates, which JSON can spell and no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode()


def _info(tool: str, *, invalid: bool) -> dict[str, Any]:
    return {"tool": tool, "invalid": invalid, "tool_error": False, "unconfirmed": False}
