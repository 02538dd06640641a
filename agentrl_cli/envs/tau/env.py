"""τ-bench (Yao et al. 2024): a user with a wish, tools over a database, a policy, a reward for the
final state, and an expert that plays the ground-truth actions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.limits import check_limits
from agentrl_cli.core.statistics import interval_over_tasks, pass_hat_k
from agentrl_cli.core.text import encodable
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import (
    SPLITS,
    Env,
    Instructions,
    episodes_by_task,
    expert_example,
    full_instructions,
    require_split,
)
from agentrl_cli.envs.tau.actions import RESPOND, Action, format_action, parse, plain_text, respond
from agentrl_cli.envs.tau.data import load_domain
from agentrl_cli.envs.tau.mini import TOOLS, MiniUser, expert_turns, mini_domain
from agentrl_cli.envs.tau.tools import Database, Domain, call_tool
from agentrl_cli.envs.tau.users import (
    PHRASES,
    ChatFunction,
    HumanUser,
    LLMUser,
    RetailUser,
    SilentUser,
    User,
    agrees,
)

ASK_IDENTITY = "Could you tell me your name with your zip code, or your email?"
DONE = "That is done. Anything else?"
MAX_K = 4  # of pass^k
OVER = "The conversation is over."


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
    confirmed: bool = False  # by the last message of the user
    turn: int = 0
    over: bool = False


@dataclass(kw_only=True)
class TauBench(Env):
    """One conversation with a user of τ-bench's retail or airline domain, or of the mini domain."""

    domain: Annotated[Literal["retail", "airline", "mini"], Field(description="Domain.")]
    data: Annotated[str | None, Field(description="Checkout of sierra-research/tau-bench, or a "
                    "folder with its data as JSON. mini needs none.")]  # fmt: skip
    user: Annotated[Literal["scripted", "llm", "human", "silent"], Field(description="scripted "
                    "(mini, and train tasks of retail), llm, human (you), or silent (ends the "
                    "episode at the first reply; for replays).")]  # fmt: skip
    actions: Annotated[Literal["react", "native", "call"], Field(description="Format of actions: "
                       "react (JSON after `Action:`), native (tool calls of the chat template), "
                       "or call (`name(argument, …)`).")]  # fmt: skip
    max_turns: Annotated[int, Field(ge=1, description="Actions per episode, which is then lost.")]
    holdout: Annotated[int, Field(ge=0, description="With the scripted user: number of last train "
                       "tasks that form the test split. 0: the official splits.")]  # fmt: skip
    llm: Annotated[ChatFunction | None, Field(description="Model of `user=llm`.")]
    instructions: Instructions = "short"
    conversation: Conversation | None = field(default=None, init=False, repr=False)

    __post_init__ = check_limits

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
        form = (
            PHRASES.prompts["react"].format(tools=json.dumps(domain.schemas))
            if self.actions == "react"
            else ""
        )
        if not self.has_full_instructions:
            return domain.policy + form
        texts = full_instructions()["shop"]
        return texts["system"] + (texts["call"] if self.actions == "call" else form)

    @property
    def has_full_instructions(self) -> bool:
        """Whether the shop shows its full instructions. Other domains have one policy only."""
        return self.domain == "mini" and self.instructions == "full"

    def example(self) -> list[Message]:
        """Return a conversation of the expert in another shop."""
        if not self.has_full_instructions:
            return []
        task = Task("example", "example", mini_domain("example").tasks["train"][0])
        return expert_example(replace(self, user="scripted"), task)

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
        """Call a tool or speak to the user. The last turn ends the conversation as lost. After the
        end a step is invalid and changes nothing. Raises RuntimeError before `reset`."""
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
        return tau_metrics(domain, episodes)

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
        return RetailUser(task["instruction"], seed, names)

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


# --- Reward and metrics -------------------------------------------------------------------------


def reward_checks(
    domain: Domain, task: dict[str, Any], database: Database, agent_messages: list[str]
) -> dict[str, bool]:
    """Return whether the `database` is as the ground-truth actions leave it, and whether the
    `agent_messages` contain every required output. The reward is 1 if both hold, else 0."""
    said = [text.lower().replace(",", "") for text in agent_messages]
    return {
        "database": database.touched() == ground_truth(domain, task).touched(),
        "outputs": all(any(out.lower() in text for text in said) for out in task["outputs"]),
    }


def ground_truth(domain: Domain, task: dict[str, Any]) -> Database:
    """Return the database after the ground-truth actions; cached by the actions."""
    return _replay(domain, json.dumps(task["actions"]))


@lru_cache(maxsize=4096)
def _replay(domain: Domain, actions: str) -> Database:
    database = Database(domain.tables)
    for action in json.loads(actions):
        if action["name"] != domain.terminal_tool:
            call_tool(domain, database, action["name"], action["kwargs"])
    return database


def won_by_doing_nothing(domain: Domain, task: dict[str, Any]) -> bool:
    """Return whether the task is won without any action."""
    return not task["outputs"] and not ground_truth(domain, task).touched()


def tau_metrics(domain: Domain, episodes: list[Episode]) -> dict[str, float]:
    """Return metrics of played episodes: pass^k with an interval clustered by task for every k up
    to the fewest episodes of a task, the do-nothing baseline, blame, and the number of calls."""
    if not episodes:
        return {}
    tasks = episodes_by_task(episodes)
    found: dict[str, float] = {}
    for k in range(1, min(MAX_K, *map(len, tasks)) + 1):
        scores = [[pass_hat_k([episode.success for episode in group], k)] for group in tasks]
        found |= interval_over_tasks(scores).metrics(f"pass_hat_{k}")
    idle_wins = sum(won_by_doing_nothing(domain, group[0].task.data) for group in tasks)
    found["do_nothing"] = idle_wins / len(tasks)
    blamed = Counter(map(_blame, episodes))
    for who in ("agent", "user", "environment"):
        found[f"failed_by_{who}"] = blamed[who] / len(episodes)
    tools = [turn.info.get("tool") for episode in episodes for turn in episode.turns]
    calls = sum(tool not in (None, "", "respond") for tool in tools)
    return found | {"tool_calls": calls / len(episodes)}


def _blame(episode: Episode) -> str:
    """Return the cause of a failure: agent, user or environment; "" for a success."""
    if episode.success:
        return ""
    if episode.stop == "error":
        return "user" if episode.error_kind == SimulatorError.kind else "environment"
    return "user" if any(turn.info.get("fault") for turn in episode.turns) else "agent"


# --- The expert: the ground-truth actions in order, with the replies that the user needs ---------


def expert_texts(
    domain: Domain, conversation: Conversation, *, user: str, style: str
) -> Iterator[str]:
    """Yield the expert's texts until the conversation ends."""
    if user == "silent":
        turns = (("", action) for action in _silent_actions(domain, conversation.task))
    elif domain.name == "mini":
        texts = expert_turns(conversation.task, domain.tables)
        turns = ((thought, parse(text, "call", TOOLS)) for thought, text in texts)
    else:
        turns = (("", action) for action in _conversation_actions(domain, conversation))
    for thought, action in turns:
        if conversation.over:
            return
        yield format_action(action, style, thought)


def _conversation_actions(domain: Domain, conversation: Conversation) -> Iterator[Action]:
    """Propose every write before it and report it after; a transfer comes last."""
    task, transfer = conversation.task, None
    yield respond(ASK_IDENTITY)
    yield _identify(domain, task["user_id"], conversation.user_message)
    for action in task["actions"]:
        if action["name"] == domain.terminal_tool:
            transfer = action
            continue
        if action["name"] in domain.writes:
            yield respond(_proposal(domain, action))
        yield Action(action["name"], action["kwargs"])
        if action["name"] in domain.writes:
            yield respond(DONE)
    if task["outputs"]:
        yield respond(f"To answer you: {'; '.join(task['outputs'])}.")
    if transfer is not None:
        yield Action(transfer["name"], transfer["kwargs"])
    while True:
        yield respond(DONE)


def _silent_actions(domain: Domain, task: dict[str, Any]) -> Iterator[Action]:
    """Yield the calls, then all outputs in one reply, because this user leaves at the first."""
    for action in task["actions"]:
        if action["name"] != domain.terminal_tool:
            yield Action(action["name"], action["kwargs"])
    yield respond("; ".join(task["outputs"]) or DONE)


def _identify(domain: Domain, user_id: str, message: str) -> Action:
    user = domain.tables["users"][user_id]
    if user["email"] in message and "find_user_id_by_email" in domain.tools:
        return Action("find_user_id_by_email", {"email": user["email"]})
    if "find_user_id_by_name_zip" not in domain.tools:
        return Action("get_user_details", {"user_id": user_id})
    arguments = {**user["name"], "zip": user["address"]["zip"]}
    return Action("find_user_id_by_name_zip", arguments)


def _proposal(domain: Domain, action: dict[str, Any]) -> str:
    arguments = action["kwargs"]
    details = [f"{key.replace('_', ' ')} {plain_text(value)}" for key, value in arguments.items()]
    if items := _item_descriptions(domain, arguments):
        details.append(f"that is {'; '.join(items)}")
    act = action["name"].replace("_", " ")
    return f"I will {act}: {', '.join(details)}. Do you confirm (yes/no)?"


def _item_descriptions(domain: Domain, arguments: dict[str, Any]) -> list[str]:
    """Return the items of a call by name, each with its new options if it is replaced."""
    if "item_ids" not in arguments:
        return []
    ordered = domain.tables["orders"][arguments["order_id"]]["items"]
    items = {item["item_id"]: item for item in ordered}
    new_items = dict(zip(arguments["item_ids"], arguments.get("new_item_ids", []), strict=False))
    descriptions = []
    for item_id in arguments["item_ids"]:
        item = items[item_id]
        variants = domain.tables["products"][item["product_id"]]["variants"]
        options = variants[new_items[item_id]]["options"] if item_id in new_items else {}
        words = plain_text([f"{key} {value}" for key, value in options.items()])
        descriptions.append(f"{item['name']} {words}".strip())
    return descriptions
