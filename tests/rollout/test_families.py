"""Conversations in the templates of real model families, against golden files: what is seen, what
is trained and where a turn ends. The templates are those that the wheel of TRL ships."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Turn
from agentrl_cli.envs.tau.actions import RESPOND, parse
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.template import give_template
from agentrl_cli.rollout.chat_template import TODAY, Chat
from tests.builders.critics import Weights
from tests.builders.errors import user_error
from tests.builders.models import build, model_config
from tests.builders.tau import services, tau_env
from tests.builders.tiny_models import CHATML, tiny_model, tiny_tokenizer

__all__ = ["services"]

FOLDER = Path(__file__).parent / "templates"
TOOL = {
    "name": "find",
    "description": "Find an item.",
    "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
}
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = [
    "<|finetune_right_pad_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
]  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A template's file, the special tokens (padding first, the end of a turn last), whether it
    shows tools, and settings of the model."""

    file: str
    special: list[str]
    tools: bool = True
    settings: dict[str, str] = field(default_factory=dict)


FAMILIES = {
    "chatml": Family("", QWEN, tools=False),
    "qwen2_5": Family("qwen2_5", QWEN),
    "qwen3": Family("qwen3", QWEN, settings={"chat_template": "qwen3"}),
    "qwen3_instruct_2507": Family("qwen3_instruct_2507", QWEN),
    "hermes": Family("hermes", QWEN),
    "llama3": Family("llama3", LLAMA, tools=False),
    "llama3_1": Family("llama3_1", LLAMA),
    "gemma": Family(
        "gemma", ["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>"], False,
        {"system_role": "user"},
    ),
}  # fmt: skip


def chat_of(family: Family, settings: dict[str, str] | None = None) -> Chat:
    """The family's chat over a small tokenizer that has its special tokens."""
    text = (FOLDER / f"{family.file}.jinja").read_text() if family.file else CHATML
    tokenizer = tiny_tokenizer(text, family.special, family.special[-1])
    if "<|begin_of_text|>" in family.special or "<bos>" in family.special:
        tokenizer.bos_token = family.special[1]
    free: Any = [AddedToken(f"<{end}{name}>", special=False)
                 for name in ("think", "tool_call") for end in ("", "/")]  # fmt: skip
    tokenizer.add_tokens(free)
    chosen = family.settings if settings is None else settings
    give_template(tokenizer, model_config("some/model", **chosen))  # pyright: ignore[reportArgumentType]
    return Chat(tokenizer)


def conversation(family: Family) -> list[Turn]:
    """A tool called, its answer, a reply, a question, a last reply."""
    call = '<tool_call>\n{"name": "find", "arguments": {"item": "lamp"}}\n</tool_call>'
    looked = Message("tool" if family.tools else "user", "The lamp is in 74.")
    return [
        Turn([Message("system", "Serve."), Message("user", "My lamp?")], call, [], [], []),
        Turn([looked], "It is in 74.", [], [], []),
        Turn([Message("user", "Thanks.")], "Bye.", [], [], []),
    ]


def encoded(chat: Chat, family: Family) -> list[Turn]:
    """The conversation with its ids."""
    return chat.encode_turns(conversation(family), [TOOL] if family.tools else ())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_is_what_the_golden_file_says(name: str):
    family = FAMILIES[name]
    chat = chat_of(family)
    chat.check([TOOL] if family.tools else ())
    text = "".join(
        f"{chat.text_of(turn.observation_ids)}⟦{chat.text_of(turn.action_ids)}⟧"
        for turn in encoded(chat, family)
    )
    assert text == (FOLDER / f"{name}.golden").read_text()


def test_qwen3s_own_template_drops_thoughts_and_is_refused():
    with pytest.raises(UserError, match="chat_template=qwen3"):
        chat_of(FAMILIES["qwen3"], {}).check()


def test_gemma_knows_no_system_turn_and_says_so():
    with pytest.raises(UserError, match=r"model\.system_role=user"):
        encoded(chat_of(FAMILIES["gemma"], {}), FAMILIES["gemma"])


@pytest.mark.parametrize("domain", ["mini", "retail"])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.tools])
def test_tool_calls_encode_as_the_whole_dialogue(name: str, domain: str, services: Path):
    chat = chat_of(FAMILIES[name])
    env = tau_env(domain, services if domain == "retail" else None, actions="native")
    task = env.tasks("train")[0]
    shown = [Message("system", env.system()), *env.reset(task, 0)]
    turns: list[Turn] = []
    history, rows, step = [*shown], [{"role": m.role, "content": m.content} for m in shown], None
    for text in env.expert(task) or ():
        action = parse(text, "native", env.domain_data.tools)
        said, row = Message("assistant", text), {"role": "assistant", "content": text}
        if action.name != RESPOND:
            if name == "llama3_1":  # its template asks for this form
                text = json.dumps({"name": action.name, "parameters": action.arguments})
            call = {"name": action.name, "arguments": action.arguments}
            row |= {"content": "", "tool_calls": [{"type": "function", "function": call}]}
            call = {**call, "arguments": json.dumps(action.arguments)}  # as OpenAI writes it
            said = Message("assistant", "", ({"type": "function", "function": call},))
        turns.append(Turn(shown, text, [], [], []))
        step = env.step(text)
        shown = step.messages
        history += [said, *shown]
        rows += [row, *({"role": m.role, "content": m.content} for m in shown)]
    assert step is not None and step.info["success"]
    assert sum("tool_calls" in row for row in rows) > 1
    ids = [i for turn in chat.encode_turns(turns, env.tools)
           for i in (*turn.observation_ids, *turn.action_ids)]  # fmt: skip
    ids += chat.extend(shown, ids[-1], env.tools)
    options: Any = {"tools": env.tools, "date_string": TODAY, "add_generation_prompt": True}
    text = str(chat.tokenizer.apply_chat_template(rows, tokenize=False, **options))
    assert ids == chat.tokenizer.encode(text, add_special_tokens=False)
    assert ids == chat.start(history, env.tools)


def test_hermes_own_template_changes_tool_answers_and_is_refused():
    chat = chat_of(FAMILIES["hermes"])
    end = "'\\n</tool_response>'"
    text = str(chat.tokenizer.chat_template)
    chat.tokenizer.chat_template = text.replace(end, f"({end} ~ ('' if loop.last else '\\n'))")
    with user_error("unstable-template"):
        Chat(chat.tokenizer).check([TOOL])


@pytest.mark.parametrize(
    ("name", "ends"),
    [  # of the generation configs of Qwen3-8B, Llama-3.1-8B-Instruct and gemma-3-4b-it
        ("qwen3", ["<|im_end|>", "<|endoftext|>"]),
        ("llama3_1", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
        ("gemma", ["<eos>", "<end_of_turn>"]),
    ],
)
def test_generation_stops_at_every_end_token(tmp_path: Path, name: str, ends: list[str]):
    family = FAMILIES[name]
    names = [*dict.fromkeys(family.special + ends)]
    tokenizer = tiny_tokenizer((FOLDER / f"{family.file}.jinja").read_text(), names)
    tokenizer.eos_token = family.special[-1]
    found: Any = tokenizer.convert_tokens_to_ids(ends)
    model = tiny_model(tokenizer, width=32, head=16)
    plain: Any = tokenizer.convert_tokens_to_ids("a")
    model.generation_config.eos_token_id = [*found, plain]  # an end token is an added token
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    models = build(tmp_path)
    chat = Chat(models.tokenizer, models.end_ids)
    assert set(chat.stop_ids) == set(found) and set(chat.ends) == set(ends)
    assert Chat(models.tokenizer).stop_ids == (tokenizer.eos_token_id,)
    generator = HFGenerator(Weights(models), max_batch=64, cache_tokens=1000)
    sampling = Sampling(max_tokens=40, temperature=2.0, stop_ids=chat.stop_ids, n=64)
    (completions,) = generator.generate([chat.start([Message("user", "Hi.")])], [0], sampling)
    last = {c.ids[-1] for c in completions if c.finish_reason == "stop"}
    assert last == set(found)
    for completion in completions:
        assert not set(found).intersection(completion.ids[:-1])
    assert chat.decode([plain, found[0]]) == chat.decode([plain, found[-1]]) == "a"
