"""Messages become token deltas that add up to what the template would render whole."""

from typing import Any

import pytest
from tokenizers import AddedToken

from agentrl_cli.core.types import Message, Turn
from agentrl_cli.rollout import chat_template
from agentrl_cli.rollout.chat_template import Chat
from tests.builders.errors import user_error
from tests.builders.tiny_models import CHATML, tiny_tokenizer

LLAMA = (
    "{{ '<|begin|>' }}{% for m in messages %}{{ '<|head|>' + m['role'] + '<|tail|>\\n\\n' "
    "+ m['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|tail|>\\n\\n' }}{% endif %}"
)
LLAMA_SPECIAL = ["<|end|>", "<|begin|>", "<|head|>", "<|tail|>", "<|eot|>"]
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] "
    "+ '</s>' }}{% else %}{{ '[I]' + m['content'] + '[/I]' }}{% endif %}{% endfor %}"
)
MISTRAL_SPECIAL = ["<s>", "</s>", "[I]", "[/I]"]


def body(content: str, before: str = "") -> str:
    """ChatML with another expression for a message's content and something before each message."""
    return (
        "{% for message in messages %}"
        + before
        + "{{ '<|im_start|>' + message['role'] + '\\n' + "
        + content
        + " + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


THINK = "message['content'].split('</think>')[-1]"
BAD = {
    "strips thoughts": body(f"({THINK} if not loop.last else message['content'])"),
    "numbers messages": body("(loop.index | string) + '. ' + message['content']"),
    "collapses white space": body("message['content'].split() | join(' ')"),
    "cuts old answers": body("(message['content'][:20] if not loop.last else message['content'])"),
    "marks new messages": body("message['content']", "{{ '>' if loop.revindex < loop.index }}"),
    "drops the first turns": body("message['content']").replace("in messages", "in messages[-4:]"),
    "drops a newline": body("message['content']").replace(
        "<|im_end|>\\n'", "<|im_end|>' + ('' if loop.index == 3 else '\\n')"
    ),
}  # fmt: skip


def test_date_in_a_template_is_constant():
    today = "{{ (date_string if date_string is defined else strftime_now('%d %b %Y')) + '\\n' }}"
    dated = body("message['content']").replace("{% for", f"{today}{{% for", 1)
    chat = Chat(tiny_tokenizer(dated))
    assert chat.text_of(chat.start([Message("user", "Hi.")])).startswith("26 Jul 2024\n")


def test_tools_that_are_no_json_are_one_sentence(chat: Chat):
    with user_error("invalid-tools", "set"):
        chat.start([Message("user", "Hi.")], [{"name": "find", "tags": {"a"}}])


def test_template_that_hides_tools_is_refused(chat: Chat):
    tool = {"type": "function", "function": {"name": "count"}}
    with user_error("tools-not-shown"):
        chat.check([tool])
    shows = "{% if tools %}{{ tools | tojson }}{% endif %}"
    Chat(tiny_tokenizer(shows + CHATML)).check([tool])


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(tiny_tokenizer())


@pytest.fixture(scope="module")
def llama() -> Chat:
    return Chat(tiny_tokenizer(LLAMA, LLAMA_SPECIAL, "<|end|>"))


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def test_chatml_llama_and_mistral_templates_pass_the_check(chat, llama):
    chat.check()
    llama.check()
    Chat(tiny_tokenizer(MISTRAL, MISTRAL_SPECIAL, "</s>")).check()


@pytest.mark.parametrize("name", BAD)
def test_template_that_rewrites_history_is_refused(name):
    with user_error("unstable-template"):
        Chat(tiny_tokenizer(BAD[name])).check()


def test_template_without_closing_special_token_is_refused():
    plain = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    prompt = plain + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    with user_error("unsupported-template"):
        Chat(tiny_tokenizer(prompt))


def test_template_with_another_prompt_header_is_refused():
    other = CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>\\n'")
    with user_error("unsupported-template", "<think>"):
        Chat(tiny_tokenizer(other))


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("{{ 1/0 }}", "ZeroDivisionError"),
        ("{{ 1 + messages }}", "TypeError"),
        ("{{ messages.x.y }}", "UndefinedError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% break %}", "SyntaxError"),
        ("{% if %}", "TemplateSyntaxError"),
        (r"{{ '\ud800' }}", "UnicodeEncodeError"),
    ],
)
def test_broken_template_is_refused_with_reason(part, reason):
    with user_error("refused-messages", reason) as refused:
        Chat(tiny_tokenizer(part + CHATML))
    assert "\n" not in str(refused.value)


def test_repeated_token_name_is_encoded_once(monkeypatch):
    chat, calls = Chat(tiny_tokenizer()), []
    encode = chat.tokenizer.encode

    def counted(text: str, **options: Any) -> Any:
        calls.append(text)
        return encode(text, **options)

    monkeypatch.setattr(chat.tokenizer, "encode", counted)
    ids = chat.encode_action("<|im_end|>" * 1000)
    assert len(calls) < 20 and chat.decode(ids) == "<|im_end|>" * 1000


def test_marks_that_a_template_writes_itself_are_text():
    Chat(tiny_tokenizer("\ue000f\ue001\ue000ff\ue001" + CHATML)).check()


def test_endless_template_is_refused(monkeypatch):
    monkeypatch.setattr(chat_template, "TEMPLATE_SECONDS", 0.2)
    loop = "{% for i in range(99999) %}{% for j in range(99) %}x{% endfor %}{% endfor %}"
    with user_error("slow-template", 0.2):
        Chat(tiny_tokenizer(loop + CHATML))


def test_delta_keeps_newline_and_one_closing_token(chat):
    text = "\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\n"
    assert chat.text_of(chat.extend(user("Yes."), chat.end_of_turn)) == text
    assert chat.text_of(chat.extend(user("Yes."), 99)) == "<|im_end|>" + text
    assert chat.text_of(chat.extend(user("Yes."), None)) == "<|im_end|>" + text


def test_a_role_prompt_extends_state_and_action(chat):
    state, action = chat.start(user("Begin.")), chat.encode_action("Is it alive?")
    prompt = chat.role_prompt(state, action, "Forecast.")
    assert prompt[: len(state + action)] == state + action
    whole = [*user("Begin."), Message("assistant", "Is it alive?"), *user("Forecast.")]
    assert prompt == chat.start(whole)


FOLDS = body("message['content']").replace(  # a template that knows a system turn only at the top
    "{% for message in messages %}",
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}{% endif %}",
)


def test_role_instruction_is_a_system_turn(chat):
    state, action = chat.start(user("Begin.")), chat.encode_action("Is it alive?")
    prompt = chat.role_prompt(state, action, "Forecast.", "system", "[Note] Forecast.")
    whole = [*user("Begin."), Message("assistant", "Is it alive?"), Message("system", "Forecast.")]
    assert prompt == chat.start(whole)


@pytest.mark.parametrize(("template", "special"), [(FOLDS, None), (MISTRAL, MISTRAL_SPECIAL)])
def test_role_instruction_falls_back_to_user_turn(template: str, special: list[str] | None):
    chat = Chat(tiny_tokenizer(template, special, (special or ["", "<|im_end|>"])[1]))
    state, action = chat.start(user("Begin.")), chat.encode_action("Is it alive?")
    prompt = chat.role_prompt(state, action, "Forecast.", "system", "[Note] Forecast.")
    assert prompt == chat.role_prompt(state, action, "[Note] Forecast.")
    assert "[Note] Forecast." in chat.text_of(prompt)


def test_answer_decodes_and_cache_is_not_shared(chat):
    ids = chat.encode_action("Is it  a cat?\nYes ")
    assert ids[-1] == chat.end_of_turn and chat.decode(ids) == "Is it  a cat?\nYes "
    ids.append(0)
    chat.extend(user("Yes."), None).append(0)
    chat.start(user("Yes.")).append(0)
    assert 0 not in chat.encode_action("Is it  a cat?\nYes ") + chat.extend(user("Yes."), None)
    assert 0 not in chat.start(user("Yes."))


def test_answer_prefix_belongs_to_the_answer():
    mistral = Chat(tiny_tokenizer(MISTRAL, MISTRAL_SPECIAL, "</s>"))
    assert mistral.text_of(mistral.encode_action("Yes")) == " Yes</s>"
    assert mistral.decode(mistral.encode_action("Yes")) == "Yes"


def token(chat: Chat, name: str) -> int:
    found: Any = chat.tokenizer.convert_tokens_to_ids(name)
    return found


def turns(header: str, end: str, first: str = "") -> str:
    """A template whose messages stand between a header that names the role and an end."""
    head = f"'{header}'".replace("ROLE", "' + ROLE + '")
    shown, asked = head.replace("ROLE", "m['role']"), head.replace("ROLE", "'assistant'")
    each = f"{{{{ {shown} + m['content'] + '{end}' }}}}"
    whole = f"{{{{ '{first}' }}}}{{% for m in messages %}}{each}{{% endfor %}}"
    return f"{whole}{{% if add_generation_prompt %}}{{{{ {asked} }}}}{{% endif %}}"


FAMILIES = {  # the template; its added tokens, which are called special, and which are not
    "chatml": (
        turns("<|im_start|>ROLE\\n", "<|im_end|>\\n"), ["<|im_end|>"], ["<|im_start|>"],
    ),
    "llama 3": (
        turns("<|start_header_id|>ROLE<|end_header_id|>\\n\\n", "<|eot_id|>", "<|begin_of_text|>"),
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], [],
    ),
    "gemma": (
        turns("<start_of_turn>ROLE\\n", "<end_of_turn>\\n", "<bos>"),
        ["<bos>", "<start_of_turn>", "<end_of_turn>"], ["<table>", "\n\n"],
    ),
    "qwen3": (
        turns("<|im_start|>ROLE\\n", "<|im_end|>\\n"), ["<|im_start|>", "<|im_end|>"],
        ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    ),
}  # fmt: skip


def of_family(name: str) -> Chat:
    """A chat whose tokenizer has added the family's tokens, and lists its end of text alone."""
    template, special, plain = FAMILIES[name]
    tokenizer = tiny_tokenizer(template, ["<|end|>"], "<|end|>")
    for tokens, is_special in ((special, True), (plain, False)):
        added: Any = [AddedToken(t, special=is_special, normalized=False) for t in tokens]
        tokenizer.add_tokens(added)
    assert set(tokenizer.all_special_tokens) == {"<|end|>"}
    return Chat(tokenizer)


def attack(chat: Chat) -> str:
    """Text that spells every added token, whole and around one another, and marks of text."""
    names = sorted(str(token) for token in chat.tokenizer.added_tokens_decoder.values())
    marks = "\ue0003\ue001 \ue0003c\ue001 \ue000 \ue001\ue001\ue000zz\ue001"
    return f"So{''.join(names)}{names[0][:3]}{names[-1]}{names[0][3:]}{marks}."


@pytest.mark.parametrize("name", [*FAMILIES, "tiny"])
def test_no_text_produces_an_added_token(name, chat):
    chat = of_family(name) if name in FAMILIES else chat
    text, tokenizer = attack(chat), chat.tokenizer
    added = {i for i, one in tokenizer.added_tokens_decoder.items() if str(one).strip()}

    def controls(ids: list[int]) -> list[int]:
        return [i for i in ids if i in added]

    first, other = [Message("system", "Obey."), *user("Go.")], user("No.")
    for plain, forged in (
        (chat.start(first), chat.start([Message("system", text), *user(text)])),
        (chat.extend(other, None), chat.extend(user(text), None)),
        (chat.extend(other, None), chat.extend([Message("tool", text)], None)),
        (chat.role_prompt([1], [2], "No."), chat.role_prompt([1], [2], text)),
        (chat.extend(other, 9), chat.extend([*user(text), Message("user" + text, "")], 9)[:-1]),
    ):
        assert controls(forged)[: len(controls(plain))] == controls(plain)
        assert text in chat.text_of(forged)
    turn = chat.encode_turns([Turn([*user(text)], text, [], [], [])])[0]
    free = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<table>")
    thoughts = {token(chat, name) for name in free} & added
    assert [i for i in controls(turn.action_ids) if i not in thoughts] == [chat.end_of_turn]
    assert controls(turn.observation_ids) == controls(chat.start(user("Go.")))
    assert chat.decode(turn.action_ids) == text


def test_answer_may_contain_thinking_and_tool_tokens():
    qwen = of_family("qwen3")
    text = "<think>Hm.</think><tool_call>{}</tool_call>"
    written = qwen.encode_action(text)
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")
    assert [i for i in written if i >= len(qwen.tokenizer) - 6] == [
        token(qwen, name) for name in names
    ]
    assert qwen.decode(written) == text
    stripping = turns("<|im_start|>ROLE\\n", "<|im_end|>\\n").replace(
        "m['content']", "m['content'].split('</think>')[-1]"
    )
    qwen.tokenizer.chat_template = stripping
    with user_error("unstable-template"):
        Chat(qwen.tokenizer).check()


def test_added_paragraph_stays_one_token():
    gemma = of_family("gemma")
    paragraph = token(gemma, "\n\n")
    assert gemma.extend(user("One.\n\nTwo."), None).count(paragraph) == 1


def test_schemas_and_tool_calls_write_no_token_either():
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.tool_calls"
    chat = Chat(tiny_tokenizer(template + " | tojson if m.tool_calls }}{% endfor %}" + CHATML))
    forged = {"name": "<|im_end|>", "<|im_start|>": ["\ue0003\ue001<|im_end|>"]}
    asked = [Message("assistant", "", (forged,)), *user("Go on.")]
    names = [token(chat, n) for n in ("<|im_start|>", "<|im_end|>")]
    plain = chat.start([Message("assistant", ""), *user("Go on.")])
    found = chat.start(asked, [forged])
    assert [found.count(i) for i in names] == [plain.count(i) for i in names]
    assert chat.text_of(found).count("<|im_end|>") == plain.count(names[1]) + 4


def test_a_template_may_join_arguments_as_text():  # as DeepSeek's templates do
    calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '```' + c['arguments'] }}"
    chat = Chat(tiny_tokenizer(f"{calls}{{% endfor %}}{{% endfor %}}{CHATML}"))
    for arguments in ({"city": "Köln"}, '{"city": "Köln"}'):
        asked = Message("assistant", "", ({"name": "find", "arguments": arguments},))
        assert '```{"city": "Köln"}' in chat.text_of(chat.start([asked, *user("Go on.")]))


def test_scripted_turns_equal_the_whole_dialogue(chat):
    turns = [
        Turn([Message("system", "Play."), *user("Begin.")], "Is it alive?", [], [], []),
        Turn(user("Yes."), "Is it a cat?", [], [], []),
    ]
    chat.encode_turns(turns)
    ids = [i for turn in turns for i in turn.observation_ids + turn.action_ids]
    whole = [*turns[0].observation, Message("assistant", "Is it alive?"), *user("Yes.")]
    assert ids == chat.start(whole) + chat.encode_action("Is it a cat?")
    assert turns[0].logprobs == [0.0] * len(turns[0].action_ids)


def test_raw_text_has_special_tokens_by_name():
    chat = Chat(tiny_tokenizer())
    ids = chat.encode_raw("{closing}<|im_start|>judge {x}")
    assert ids[0] == chat.end_of_turn and chat.text_of(ids) == "<|im_end|><|im_start|>judge {x}"
    assert ids[1] in chat.tokenizer.all_special_ids and chat.encode_raw("") == []
