"""τ-bench: a user with a wish, tools over a database, a policy, a reward for the final state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError, require_at_least
from agentrl_cli.core.text import encodable
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import SPLITS, Env, require_split
from agentrl_cli.envs.tau.actions import RESPOND, STYLES, Action, parse
from agentrl_cli.envs.tau.data import TABLES, Domain, load_domain
from agentrl_cli.envs.tau.database import Database
from agentrl_cli.envs.tau.expert import expert_texts
from agentrl_cli.envs.tau.mini import MiniUser, mini_domain
from agentrl_cli.envs.tau.reward import reward_checks, summarise
from agentrl_cli.envs.tau.tools import call_tool
from agentrl_cli.envs.tau.users import (
    ChatFunction,
    HumanUser,
    LLMUser,
    RetailUser,
    SilentUser,
    User,
    agrees,
)

CHOICES = {
    "domain": (*TABLES, "mini"),
    "user": ("scripted", "llm", "human", "silent"),
    "actions": STYLES,
}
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


@dataclass
class Conversation:
    """The state of the episode in progress."""

    task: dict[str, Any]
    database: Database
    user: User
    split: str
    user_message: str  # the last one
    first_fault: str  # of the user's first message
    agent_messages: list[str] = field(default_factory=list)
    confirmed: bool = False  # the last user message said yes
    turn: int = 0
    over: bool = False


@dataclass(kw_only=True)
class TauBench(Env):
    """One conversation with a user of τ-bench's retail or airline domain, or of the mini domain."""

    domain: Annotated[str, Field(description="Domain: retail, airline or mini.")]
    data: Annotated[
        str | None,
        Field(description="Checkout of sierra-research/tau-bench, or a folder with its data as "
              "JSON. mini needs none."),
    ]  # fmt: skip
    user: Annotated[
        str,
        Field(description="User: scripted (mini, and retail's train tasks), llm, human (you), or "
              "silent (ends at the first reply; for replays)."),
    ]  # fmt: skip
    actions: Annotated[
        str,
        Field(description="Action format: react (JSON after `Action:`), native (tool calls of the "
              "chat template), or call (`name(argument, …)`)."),
    ]  # fmt: skip
    max_turns: Annotated[
        int, Field(ge=1, description="Actions per episode. At the limit it is lost.")
    ]
    holdout: Annotated[
        int,
        Field(ge=0, description="With the scripted user: number of last train tasks that form the "
              "test split. 0 uses the official splits."),
    ]  # fmt: skip
    llm: Annotated[ChatFunction | None, Field(description="Model of `user=llm`.")]
    conversation: Conversation | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise UserError for an invalid setting."""
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                line = f"env.{name} is '{value}'; use one of {', '.join(known)}"
                raise UserError(line, code="unknown-choice")
        require_at_least(1, turns=self.max_turns)
        require_at_least(0, holdout=self.holdout)

    @property
    def domain_data(self) -> Domain:
        """The domain of the episode in progress; `val` of mini has its own."""
        return self.domain_of(self.conversation.split if self.conversation else "train")

    def domain_of(self, split: str) -> Domain:
        """Return the data of a split's domain, cached per process and not kept on the instance."""
        if self.domain == "mini":
            return mini_domain(split)
        if self.data is None:
            raise UserError(
                f"env.data is missing: τ-bench's {self.domain} data does not come with agentrl. "
                "Set env.data to a checkout of sierra-research/tau-bench.",
                code="missing-data",
            )
        return load_domain(self.domain, self.data)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tool schemas, if the chat template shows them."""
        return list(self.domain_data.schemas) if self.actions == "native" else []

    def system(self) -> str:
        """Return the policy; for `react` also the tools and the form of an action."""
        domain = self.domain_data
        form = REACT.format(tools=json.dumps(domain.schemas)) if self.actions == "react" else ""
        return domain.policy + form

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split; a domain may have none. `val` and τ-bench's `dev` are the
        same tasks."""
        require_split(split, (*SPLITS, "dev"))
        source = "dev" if split == "val" else split
        rows = self.domain_of(split).tasks[source]
        if self.user == "scripted" and self.holdout:
            source, rows = "train", self.domain_data.tasks["train"]
            kept = max(0, len(rows) - self.holdout)
            rows = {"train": rows[:kept], "test": rows[kept:]}.get(split, ())
        return [Task(f"{self.domain}-{source}-{row['id']}", split, row) for row in rows]

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Start with a fresh database; the user speaks first."""
        user = self._make_user(task.data, seed)
        first = user.start()
        database = Database(self.domain_of(task.split).tables)
        self.conversation = Conversation(
            task.data, database, user, task.split, first.text, first.fault
        )
        return [Message("user", first.text)]

    def step(self, action: str) -> Step:
        """Call a tool or speak to the user. The last of `turns` ends the conversation as lost. A
        step after the end is invalid and changes nothing. Raises RuntimeError before `reset`."""
        conversation = self._running()
        info = {"tool": "", "invalid": True, "tool_error": False, "unconfirmed": False}
        if conversation.over:
            return Step([Message("user", OVER)], 0.0, True, False, info)
        conversation.turn += 1
        parsed = parse(action, self.actions, self.domain_data.tools)
        info |= {"tool": encodable(parsed.name), "invalid": parsed.malformed}
        if conversation.turn == 1 and conversation.first_fault:
            info["fault"] = conversation.first_fault
        if parsed.name == RESPOND:
            message, finished = self._respond(encodable(parsed.arguments["content"]), info)
        else:
            message, finished = self._call(parsed, info)
        if finished:
            data, said = conversation.database, conversation.agent_messages
            checks = reward_checks(self.domain_data, conversation.task, data, said)
            info |= {"success": all(checks.values()), "privileged": checks}
        conversation.over = finished or conversation.turn >= self.max_turns
        if conversation.over:
            info.setdefault("success", False)
        reward = float(info.get("success", False))
        return Step([message], reward, conversation.over, False, info)

    def expert(self, task: Task) -> Iterator[str] | None:
        """Yield the ground-truth actions with the replies that the user needs. Raises RuntimeError
        before `reset`."""
        conversation = self._running()
        return expert_texts(self.domain_data, conversation, user=self.user, style=self.actions)

    def digest(self) -> str | None:
        """Return τ-bench's hash of the database in its present state."""
        return self.conversation.database.digest() if self.conversation else None

    def summarise(self, episodes: list[Episode]) -> dict[str, float]:
        """Return pass^k, the causes of failures, and the do-nothing baseline."""
        domain = self.domain_of(episodes[0].task.split) if episodes else self.domain_data
        return summarise(domain, episodes)

    def _make_user(self, task: dict[str, Any], seed: int) -> User:
        if self.user == "silent":
            return SilentUser()
        if self.user == "human":
            return HumanUser(task["instruction"])
        if self.user == "llm":
            if self.llm is None:
                line = "env.user=llm needs a model; set env.llm.model=NAME"
                raise UserError(line, code="missing-model")
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
        conversation = self._running()
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
            answer = call_tool(domain, conversation.database, action.name, action.arguments)
        answer = encodable(answer)
        info["tool_error"] = answer.startswith("Error")
        if action.name in domain.writes and not info["tool_error"]:
            conversation.confirmed = False
        is_react = self.actions == "react"
        message = Message("user", f"API output: {answer}") if is_react else Message("tool", answer)
        return message, action.name == domain.terminal_tool
