"""Which chat template a model is trained with, and that its run keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

from agentrl_cli.cli.export import export
from agentrl_cli.cli.train import resume
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Turn
from agentrl_cli.models.load import load_base
from agentrl_cli.models.template import give_template, template_text
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.runs.run import Run
from tests.builders.command_line import agentrl, refused, train
from tests.builders.errors import user_error
from tests.builders.models import model_config, write_model
from tests.builders.runs import trained
from tests.builders.tiny_models import CHATML, tiny_tokenizer

GEMMA = (  # the form of Gemma's: it knows no system turn, roles alternate, answers are trimmed
    "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' "
    "+ m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
GEMMA_SPECIAL = ["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
HYBRID = (  # the form of Qwen3's: thoughts before the last user's turn are dropped
    "{% set last = namespace(user=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% set said = m['content'].split('</think>')[-1] if loop.index0 < last.user "
    "and m['role'] == 'assistant' else m['content'] %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOOLS = [{"name": "find", "parameters": {"type": "object"}}]


def chat_of(template: Any, special: list[str] | None = None, **changes: str | None) -> Chat:
    """The chat of a tokenizer that has a template of its own, as the settings change it."""
    eos = special[-1] if special else "<|im_end|>"
    tokenizer = tiny_tokenizer(template, special, eos)
    thoughts: Any = [AddedToken(name, special=False) for name in ("<think>", "</think>")]
    tokenizer.add_tokens(thoughts)
    give_template(tokenizer, model_config("some/model", **changes))  # pyright: ignore[reportArgumentType]
    return Chat(tokenizer)


def with_template(folder: Path, text: str | None) -> Path:
    """A model folder whose tokenizer has another template, or none."""
    write_model(folder)
    (folder / "chat_template.jinja").unlink()
    if text is not None:
        (folder / "chat_template.jinja").write_text(text)
    return folder


def test_the_shipped_qwen3_template_keeps_the_thoughts_that_qwen3s_own_drops():
    with pytest.raises(UserError, match=r"corrupt training: .*chat_template=qwen3$") as caught:
        chat_of(HYBRID).check()
    assert "\n" not in str(caught.value)
    chat = chat_of(HYBRID, chat_template="qwen3")
    chat.check()
    chat.check(TOOLS)
    said = [
        Turn([Message("user", "Begin.")], "<think>\nA cat.\n</think>\n\nIs it?", [], [], []),
        Turn([Message("user", "Yes.")], "Done.", [], [], []),
    ]
    ids = [i for turn in chat.encode_turns(said) for i in turn.observation_ids + turn.action_ids]
    assert chat.text_of(ids) == (
        "<|im_start|>user\nBegin.<|im_end|>\n<|im_start|>assistant\n<think>\nA cat.\n</think>\n\n"
        "Is it?<|im_end|>\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>"
    )


def test_the_shipped_qwen3_template_writes_schemas_calls_and_their_answers():
    chat = chat_of(CHATML, chat_template="qwen3")
    call = {"name": "find", "arguments": {"what": "a cat"}}
    rows = [
        Message("system", "Play."), Message("user", "Go."),
        Message("assistant", "I look.", (call,)),
        Message("tool", "one"), Message("tool", "two"),
    ]  # fmt: skip
    text = chat.text_of(chat.start(rows, TOOLS))
    assert text.startswith("<|im_start|>system\nPlay.\n\n# Tools\n\n")
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>" in text
    assert text.endswith(
        f"I look.\n<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert text.count("Play.") == 1
    assert chat.text_of(chat.start(rows[:2])).startswith("<|im_start|>system\nPlay.<|im_end|>\n")


def test_a_system_text_opens_the_first_user_turn_where_that_is_declared():
    played = [Message("system", "Play."), Message("user", "Begin.")]
    with pytest.raises(UserError, match=r"refuses messages of system, .*model\.system_role=user"):
        chat_of(GEMMA, GEMMA_SPECIAL).start(played)
    chat = chat_of(GEMMA, GEMMA_SPECIAL, system_role="user")
    chat.check()
    head, answer = "<bos><start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"
    assert chat.text_of(chat.start(played)) == f"{head}Play.\n\nBegin.{answer}"
    assert chat.text_of(chat.start(played[1:])) == f"{head}Begin.{answer}"
    assert chat.text_of(chat.start(played[:1])) == f"{head}Play.{answer}"
    both = chat_of({"default": GEMMA, "tool_use": GEMMA}, GEMMA_SPECIAL, system_role="user")
    assert both.start(played) == both.start(played, TOOLS) == chat.start(played)


def test_missing_template_is_refused_before_weights_load(tmp_path: Path):
    folder = with_template(tmp_path / "model", None)
    (folder / "model.safetensors").unlink()
    settings = model_config(folder)
    with user_error("no-template"):
        load_base(settings, torch.device("cpu"), 0)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"Hello.", b"{{ messages }}${x}"])
def test_invalid_template_file_is_refused(tmp_path: Path, content: bytes | None):
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with user_error("unreadable-template"):
        template_text(str(file))
    refused(train(tmp_path, f"model.chat_template={file}"), str(file))
    assert not (tmp_path / "runs" / "it").exists()


@pytest.mark.slow
def test_a_run_keeps_its_template_when_the_file_is_gone(tmp_path: Path):
    folder, file = with_template(tmp_path / "model", None), tmp_path / "mine.jinja"
    file.write_text("{# mine #}\n" + CHATML)
    model = ["model=hf", f"model.path={folder}", f"model.chat_template={file}"]
    small = ["steps=1", "save_every=1", "eval_every=0", "rollout.max_seq_len=512"]
    run = trained(tmp_path, "grpo", "it", *model, *small)
    text, digest = file.read_text(), run.meta["chat_template"]
    file.unlink()
    resume(str(run.folder), ["steps=2"])
    assert Run(run.folder).meta["chat_template"] == digest and len(digest) == 16
    export(str(run.folder), tmp_path / "plain")
    saved = run.latest_checkpoint() / "models" / "policy"
    for place in (saved, tmp_path / "plain"):
        assert AutoTokenizer.from_pretrained(place).chat_template == text
    assert agentrl("eval", str(run.folder)).exit_code == 0


def test_a_run_whose_tokenizer_got_another_template_is_not_resumed(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    small = ["model=hf", f"model.path={folder}", "steps=1", "save_every=1", "eval_every=0"]
    run = trained(tmp_path, "grpo", "it", *small, "rollout.max_seq_len=512")
    (folder / "chat_template.jinja").write_text("{# other #}" + CHATML)
    with pytest.raises(UserError, match=r"chat template .* has changed"):
        resume(str(run.folder), ["steps=2"])


@pytest.mark.parametrize(
    "text",
    [
        "{{ 9 ** 9 ** 9 }}",
        "{% if messages | length > 40 %}{{ x ** 2 }}{% endif %}",
        "{{ 'x' * 99999 * 99999 }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 'x'.center(10000000000) }}",
        "{{ '%3000000000d' % 1 }}",
        "{{ '{:>3000000000}'.format(1) }}",
        "{% generation %}{{ 9 ** 9 }}{% endgeneration %}",
    ],
)
def test_endless_arithmetic_is_refused_before_rendering(text: str):
    with user_error("endless-template"):
        chat_of(CHATML + text)


def test_usual_arithmetic_is_allowed():
    formats = "{{ '' * 3 }}{{ '%04d 20240731 {:>4}'.format(7) }}"
    chat_of(formats + "{% if 5 % 2 == 3 and 100000 - 7 > 0 %}x{% endif %}" + CHATML)
