"""The environment: a user with a wish, tools over a database, a policy, τ-bench's reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.text import encodable
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import SPLITS, Env, require_split
from agentrl_cli.envs.tau import measures
from agentrl_cli.envs.tau.actions import RESPOND, STYLES, Action, parse
from agentrl_cli.envs.tau.calls import call_tool
from agentrl_cli.envs.tau.conversation import Conversation
from agentrl_cli.envs.tau.data import TABLES, Domain, load_domain
from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.expert import expert_texts
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
        """What the episode in progress is played in; of the mini shop `val` has another."""
        return self.domain_of(self.conversation.split if self.conversation else "train")

    def domain_of(self, split: str) -> Domain:
        """The domain's data, read once in a process and not kept on the instance."""
        if self.domain == "mini":
            return mini_domain(split)
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
        domain = self.domain_data
        form = REACT.format(tools=json.dumps(domain.schemas)) if self.actions == "react" else ""
        return domain.policy + form

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, of which a domain may have none. `val` and `dev`, as τ-bench calls
        it, are the same tasks."""
        require_split(split, (*SPLITS, "dev"))
        source = "dev" if split == "val" else split
        rows = self.domain_of(split).tasks[source]
        if self.user == "scripted" and self.holdout:
            source, rows = "train", self.domain_data.tasks["train"]
            kept = max(0, len(rows) - self.holdout)
            rows = {"train": rows[:kept], "test": rows[kept:]}.get(split, ())
        return [Task(f"{self.domain}-{source}-{row['id']}", split, row) for row in rows]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """A fresh database and a user who speaks first."""
        user = self._user(task.data, seed)
        database = Database(self.domain_of(task.split).tables)
        self.conversation = Conversation(task.data, database, user, split=task.split)
        first = user.start()
        self.conversation.user_message, self.conversation.first_fault = first.text, first.fault
        return [Message("user", first.text)]

    def step(self, action: str) -> Step:
        """A tool call or words for the user; the last of `turns` ends the conversation, which is
        lost. After the end nothing happens: an invalid step without reward. RuntimeError before
        `reset`."""
        conversation = self._running()
        if conversation.over:
            return Step([Message("user", OVER)], 0.0, True, False, _info("", invalid=True))
        conversation.turn += 1
        parsed = parse(action, self.actions, self.domain_data.tools)
        info = _info(encodable(parsed.name), invalid=parsed.malformed)
        if conversation.turn == 1 and conversation.first_fault:
            info["fault"] = conversation.first_fault
        if parsed.name == RESPOND:
            message, finished = self._respond(parsed.arguments["content"], info)
        else:
            message, finished = self._call(parsed, info)
        reward = self._reward(info) if finished else 0.0
        conversation.over = finished or conversation.turn >= self.turns
        if conversation.over:
            info.setdefault("success", False)
        return Step([message], reward, conversation.over, False, info)

    def expert(self, task: Task) -> Iterator[str] | None:
        """The ground-truth actions with the replies that they need. RuntimeError before `reset`."""
        conversation = self._running()
        return expert_texts(self.domain_data, conversation, user=self.user, style=self.actions)

    def digest(self) -> str | None:
        """τ-bench's hash of the database as the agent left it."""
        return self.conversation.database.digest() if self.conversation else None

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """pass^k, whose fault failures were, and what doing nothing would have won."""
        domain = self.domain_of(episodes[0].task.split) if episodes else self.domain_data
        return measures.summarise(domain, episodes)

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

    def _respond(self, words: str, info: dict[str, Any]) -> tuple[Message, bool]:
        conversation, words = self._running(), encodable(words)
        conversation.agent_messages.append(words)
        reply = conversation.user.reply(words)
        conversation.user_message, conversation.confirmed = reply.text, agrees(reply.text)
        if reply.fault:
            info["fault"] = reply.fault
        return Message("user", reply.text), reply.stops

    def _call(self, action: Action, info: dict[str, Any]) -> tuple[Message, bool]:
        conversation, domain = self._running(), self.domain_data
        if action.problem:
            answer = f"Error: {action.problem}"
        else:
            info["invalid"] |= action.name not in domain.tools
            info["unconfirmed"] = action.name in domain.writes and not conversation.confirmed
            data, arguments = conversation.database, action.arguments
            answer = call_tool(domain.tools, domain.name, data, action.name, arguments)
        answer = encodable(answer)
        info["tool_error"] = answer.startswith("Error")
        if action.name in domain.writes and not info["tool_error"]:
            conversation.confirmed = False
        is_react = self.actions == "react"
        message = Message("user", f"API output: {answer}") if is_react else Message("tool", answer)
        return message, action.name == domain.terminal_tool

    def _reward(self, info: dict[str, Any]) -> float:
        end = self._running()
        checks = reward_checks(self.domain_data, end.task, end.database, end.agent_messages)
        info["success"] = all(checks.values())
        info["privileged"] = checks
        return float(info["success"])


def _info(tool: str, *, invalid: bool) -> dict[str, Any]:
    return {"tool": tool, "invalid": invalid, "tool_error": False, "unconfirmed": False}
