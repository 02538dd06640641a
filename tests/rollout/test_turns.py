"""Where a sampled reply is cut into turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.core.types import Message, Turn
from agentrl_cli.generators.base import Completion
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import split_into_turns
from tests.builders.tiny_models import tiny_tokenizer
from tests.fakes.echo import CHAT

THINKING = "{% if m['role'] == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
PREFIXED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    + THINKING
    + "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_answer_prefix_occurs_once_and_stays_whole():
    chat = Chat(tiny_tokenizer(PREFIXED))
    assert chat.answer_prefix == "<think>\n\n</think>\n\n"
    whole = chat.encode_action("One.\n\nTwo.")
    parts = split_into_turns(Completion(whole, [0.0] * len(whole), "stop"), "\n\n", chat)
    assert [chat.decode(part.ids) for part in parts] == ["One.\n\n", "Two."]
    scripted = [Turn([Message("user", "Hi.")], "One.\n\n", [], [], [])]
    chat.encode_turns([*scripted, second := Turn([], "Two.", [], [], [])])
    assert chat.text_of(scripted[0].action_ids + second.action_ids) == chat.text_of(whole)


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", ";", " b", "é", ";;", "."]), max_size=30))
def test_turns_end_at_each_delimiter(words):
    ids = CHAT.encode_action("".join(words))
    ends, begin = [], 0
    for end in range(1, len(ids)):  # the definition, which decodes all that a turn has so far
        if CHAT.decode(ids[begin:end]).endswith("\n\n"):
            ends, begin = [*ends, end], end
    parts = split_into_turns(Completion(ids, [0.0] * len(ids), "stop"), "\n\n", CHAT)
    assert [len(part.ids) for part in parts] == [
        b - a for a, b in zip([0, *ends], [*ends, len(ids)], strict=True)
    ]
