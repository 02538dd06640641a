"""Convert messages to token ids and back by the model's chat template.

Play and training tokenise here alone. A dialogue grows by deltas: the template's text after an
answer, the new messages, the next header. Sampled tokens are never tokenised again. `check`
refuses a template for which the deltas differ from the whole dialogue.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Key = tuple[tuple[str, str, str], ...]
Tools = Sequence[dict[str, Any]]
Ids = list[int]
Result = TypeVar("Result")

TEMPLATE_SECONDS = 5.0  # for a dialogue of a few words
CACHED_ENCODINGS = 1 << 13
TODAY = "26 Jul 2024"  # the default date in Llama's templates
SENTINEL = "qzanswerzq"
ANCHOR = (("user", "anchor", ""),)
THOUGHT = "<think>\nA cat, perhaps.\n</think>\n\nIs it  a cat?"
ANSWERS = ("Is it alive?", THOUGHT, "One line\n\nand two.")
OPEN, CLOSE = "\ue000", "\ue001"  # around marked text; they are marked if a text holds them
MARKS = re.compile(f"[{OPEN}{CLOSE}]")
MARKED = re.compile(f"{OPEN}((?:[0-9a-f]{{2}})+){CLOSE}")  # plain text in hex


class Chat:
    """One tokenizer and its template, with cached encodings.

    `end_of_turn` is the token that closes an answer, and `answer_prefix` is the template's text
    before an answer (usually ""). `stop_ids` end sampling: the end tokens of the template, of the
    tokenizer and, if they are added tokens, `end_ids` of the model's generation config. Raises
    UserError if the template has none.
    A template that takes a date (`date_string`) always gets the same one, so that a resumed run has
    the same prompts.

    No text can produce an added token of the tokenizer, special or not. Only an answer may contain
    added tokens that neither are special nor frame a message (`<think>`, `<tool_call>`).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        tokens = tokenizer.added_tokens_decoder.values()
        self._special = {*tokenizer.all_special_tokens, *(str(t) for t in tokens if t.special)}
        # every text may contain white space, which Gemma adds as tokens
        added = {name for name in self._special | set(map(str, tokens)) if name.strip()}
        found: Any = tokenizer.convert_tokens_to_ids(sorted(added))
        self._token_ids = set[int](found)
        self._in_text = self._in_answer = _any_of(added)
        self._start = lru_cache(CACHED_ENCODINGS)(self._start_ids)
        self._tail = lru_cache(CACHED_ENCODINGS)(self._tail_ids)
        self._answer = lru_cache(CACHED_ENCODINGS)(self._answer_ids)
        self._plain = lru_cache(CACHED_ENCODINGS)(self._encode_plain)
        text, self.answer_prefix, self.end_of_turn = _in_time(self._frame)
        eos: Any = tokenizer.eos_token_id
        ends = [self.end_of_turn] if eos is None else [self.end_of_turn, int(eos)]
        ends += [i for i in end_ids if i in self._token_ids]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        self._in_answer = _any_of(self._special | set(self._in_text.findall(text)) | set(self.ends))

    @property
    def ends(self) -> list[str]:
        """The names of the tokens that end an answer."""
        return [str(self.tokenizer.convert_ids_to_tokens(i)) for i in self.stop_ids]

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.tokenizer.chat_template, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def start(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """Return the ids of the system and first messages and the header of the first answer."""
        return list(self._start(_key(messages), _dump(tools)))

    def extend(self, messages: Sequence[Message], last_id: int | None, tools: Tools = ()) -> Ids:
        """Return the delta after an answer that ended with `last_id`: the closing token unless it
        was sampled, the template's text after it, the messages, the next header. Without messages
        the same answer continues, so the delta is empty."""
        if not messages:
            return []
        ids = self._tail(_key(messages), _dump(tools))
        return list(ids[1:] if last_id == self.end_of_turn else ids)

    def role_prompt(
        self, state_ids: list[int], action_ids: list[int], instruction: str, speaker: str = "user",
        framed: str | None = None,
    ) -> Ids:  # fmt: skip
        """Return the prompt of a role: state, action, then the instruction as the last message. If
        `speaker` is "system" and the template supports no later system message, the user says the
        `framed` instruction instead."""
        if speaker == "system" and not self.has_later_system_turns:
            speaker, instruction = "user", framed or instruction
        last_id = action_ids[-1] if action_ids else None
        return state_ids + action_ids + self.extend([Message(speaker, instruction)], last_id)

    @cached_property
    def has_later_system_turns(self) -> bool:
        """Whether the template shows a system message after an answer as such."""
        try:
            played = (*ANCHOR, ("assistant", ANSWERS[0], ""))
            shown = self._render((*played, ("system", SENTINEL, "")), "", True)
            said = self._render((*played, ("user", SENTINEL, "")), "", True)
        except UserError:
            return False
        return SENTINEL in shown.partition(ANSWERS[0])[2] and shown != said

    def encode_action(self, text: str, *, goes_on: bool = False) -> list[int]:
        """Return the ids of a whole answer with its closing token, as if sampled; with `goes_on`
        the ids of the rest of an answer."""
        return list(self._answer(text, "" if goes_on else self.answer_prefix))

    def encode_raw(self, text: str) -> list[int]:
        """Return the ids of `text` without a template. Special tokens are written by name, and
        `{closing}` stands for the closing token. Text after a leading `{message}` is a user message
        after an answer, in the template."""
        if text.startswith("{message}"):
            return self.extend([Message("user", text.removeprefix("{message}"))], None)
        text = _mark(text, MARKS).replace("{closing}", self.text_of([self.end_of_turn]))
        return list(self._encode(text))

    def encode_turns(self, turns: list[Turn], tools: Tools = ()) -> list[Turn]:
        """Fill in the ids of text-only turns in place, with log-probabilities of 0."""
        last_id = None
        for i, turn in enumerate(turns):
            if i == 0:
                turn.observation_ids = self.start(turn.observation, tools)
            else:
                turn.observation_ids = self.extend(turn.observation, last_id, tools)
            is_cut = i + 1 < len(turns) and not turns[i + 1].observation
            answer = self.encode_action(turn.action, goes_on=i > 0 and not turn.observation)
            turn.action_ids = answer[:-1] if is_cut else answer
            turn.logprobs = [0.0] * len(turn.action_ids)
            last_id = turn.action_ids[-1] if turn.action_ids else None
        return turns

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a sampled answer without special tokens and its end token."""
        ids = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.text_of(ids, special=False).removeprefix(self.answer_prefix)

    def text_of(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Return the text of any ids, with or without the names of special tokens."""
        options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(ids), **options))

    def prefix_length(self, ids: Sequence[int]) -> int:
        """Return how many first ids of a sampled answer spell the template's answer prefix."""
        length = 0
        while length < len(ids) and self.text_of(ids[:length]) != self.answer_prefix:
            length += 1
            if not self.answer_prefix.startswith(self.text_of(ids[:length])):
                return 0
        return length

    def ends_with(self, ids: Sequence[int], text: str) -> bool:
        """Return whether the text of sampled ids ends with `text`; decodes only the last ids."""
        count = len(text) + 1
        while len(found := self.text_of(ids[-count:], special=False)) <= len(text):
            if count >= len(ids):
                break
            count *= 2
        return found.endswith(text)

    def vocabulary(self) -> list[str]:
        """Return the text of every token, by id."""
        return [self.text_of([i]) for i in range(len(self.tokenizer))]

    def check(self, tools: Tools = ()) -> None:
        """Raise UserError if the template leaves tools out, and, with the differing tokens, if a
        dialogue of three turns, rendered as a whole, differs from the sum of its deltas. White
        space around an answer is exempt, because some templates strip it."""
        _in_time(partial(self._check, tools))

    def _check(self, tools: Tools) -> None:
        begun = [Message("system", "Play the game."), Message("user", "Begin.")]
        if tools and self.start(begun, tools) == self.start(begun):
            line = "the chat template does not show the environment's tools to the model"
            remedy = "use a template that does, as model.chat_template=qwen3, or describe the tools"
            raise UserError(f"{line}; {remedy} in the system message", code="tools-not-shown")
        for role in ("user", "tool") if tools else ("user",):
            played = begun.copy()
            ids = self.start(played, tools)
            for answer in ANSWERS:
                played += [Message("assistant", answer), Message(role, f"After {len(ids)}.")]
                action = self.encode_action(answer)
                ids = ids + action + self.extend(played[-1:], action[-1], tools)
                whole = self.start(played, tools)
                if whole != ids:
                    pairs = enumerate(zip(whole, ids, strict=False))
                    end = min(len(whole), len(ids))
                    at = next((i for i, (one, other) in pairs if one != other), end)
                    show = self.tokenizer.convert_ids_to_tokens
                    line = f"the chat template would corrupt training: at token {at} the whole"
                    line += f" dialogue has {show(whole[at : at + 6])} where its turns have"
                    line += f" {show(ids[at : at + 6])}; use a template that only appends to a"
                    message = f"{line} dialogue, as model.chat_template=qwen3"
                    raise UserError(message, code="unstable-template")

    def _frame(self) -> tuple[str, str, int]:
        """Return the template's text around an answer, the prefix of the answer, and the id of the
        closing token."""
        answered = self._render((*ANCHOR, ("assistant", SENTINEL, ""), *ANCHOR), "", False)
        before, _, after = answered.partition(SENTINEL)
        header = self._render(ANCHOR, "", True)
        if not after or not before.startswith(header):
            line = f"heads an answer with {before!r} but prompts for it with {header!r}"
            remedy = "use a template that prompts with the header it writes"
            raise UserError(f"the chat template {line}; {remedy}", code="unsupported-template")
        closing = self._encode(after)[0]
        if self.tokenizer.convert_ids_to_tokens(closing) not in self._special:
            line = f"ends an answer with {after[:20]!r}, which is not a special token"
            remedy = "use a template that closes an answer with a special token"
            raise UserError(f"the chat template {line}; {remedy}", code="unsupported-template")
        return answered, before[len(header) :], closing

    def _start_ids(self, key: Key, tools: str) -> tuple[int, ...]:
        return self._encode(self._render(key, tools, True))

    def _tail_ids(self, key: Key, tools: str) -> tuple[int, ...]:
        """Return the ids after an answer, with its closing token first."""
        text = self._render((*ANCHOR, ("assistant", SENTINEL, ""), *key), tools, True)
        return self._encode(text.partition(SENTINEL)[2])

    def _answer_ids(self, text: str, prefix: str) -> tuple[int, ...]:
        marked = _mark(text, self._in_answer)
        return (*self._encode(prefix + marked), self.end_of_turn)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text; tokens are written by name, and marked parts are plain text."""
        ids: list[int] = []
        for i, part in enumerate(MARKED.split(text)):
            if i % 2:
                ids += self._plain(bytes.fromhex(part).decode(errors="replace"))
            elif part:
                ids += self._encode_part(part, split_special_tokens=False)
        return tuple(ids)

    def _encode_plain(self, text: str) -> Ids:
        """Return the ids of a plain text. A tokenizer splits only the names of special tokens, so
        the name of another token is cut in two until it is none."""
        ids = self._encode_part(text, split_special_tokens=True)
        if len(text) == 1 or self._token_ids.isdisjoint(ids):
            return ids
        half = len(text) // 2
        return self._encode_plain(text[:half]) + self._encode_plain(text[half:])

    def _encode_part(self, text: str, **options: Any) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False, **options)

    def _render(self, key: Key, tools: str, prompt: bool, as_text: bool = False) -> str:
        """Return the template's text, with the arguments of earlier calls as text if the template
        does not take objects. Raises UserError if it refuses the messages."""
        from jinja2.exceptions import TemplateError

        broken = (TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError)
        rows = [self._row(role, content, calls, as_text) for role, content, calls in key]
        shown = _mark(json.loads(tools), self._in_text) if tools else None
        options = {"tools": shown, "add_generation_prompt": prompt, "date_string": TODAY}
        try:
            text = str(self.tokenizer.apply_chat_template(rows, tokenize=False, **options))
            text.encode()  # raises for lone surrogates
            return text
        except (*broken, RuntimeError, SyntaxError, TypeError, ValueError) as error:
            if any(calls for _, _, calls in key) and not as_text:
                with suppress(UserError):
                    return self._render(key, tools, prompt, as_text=True)
            roles = ", ".join(role for role, _, _ in key)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            line = f"the chat template refuses messages of {roles} ({reason})"
            fold = ", or model.system_role=user if it has no system turn"
            remedy = f"use a template that takes them{fold if 'system' in roles else ''}"
            raise UserError(f"{line}; {remedy}", code="refused-messages") from error

    def _row(self, role: str, content: str, calls: str, as_text: bool) -> dict[str, Any]:
        """Return a message for the template, with the names of tokens marked as plain text."""
        names = self._in_answer if role == "assistant" else self._in_text
        row = {"role": _mark(role, names), "content": _mark(content, names)}
        return {**row, "tool_calls": _mark(_parsed_calls(calls, as_text), names)} if calls else row


def _in_time(call: Callable[[], Result]) -> Result:
    """Return what the call returns. Raises UserError if the template takes too long."""
    result = Future[Result]()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return result.result(TEMPLATE_SECONDS)
    except TimeoutError:
        line = f"the chat template takes more than {TEMPLATE_SECONDS:g} s for a short dialogue"
        raise UserError(f"{line}; use another one", code="slow-template") from None


def _key(messages: Sequence[Message]) -> Key:
    return tuple((m.role, m.content, _dump(m.tool_calls)) for m in messages)


def _parsed_calls(calls: str, as_text: bool) -> list[dict[str, Any]]:
    """Return tool calls with their arguments as objects, or as JSON in a text. OpenAI's format has
    a text, which most templates would quote again, and DeepSeek's templates take nothing else."""
    rows: list[dict[str, Any]] = json.loads(calls)
    for row in rows:
        function = row.get("function", row)
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str) and not as_text:
            with suppress(ValueError, RecursionError):
                function["arguments"] = json.loads(arguments or "{}")
        elif isinstance(arguments, dict) and as_text:
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return rows


def _dump(rows: Sequence[dict[str, Any]]) -> str:
    try:
        return json.dumps(list(rows)) if rows else ""
    except (TypeError, ValueError, RecursionError) as error:
        line = f"an environment's tools or calls are not JSON ({error}); use plain values"
        raise UserError(line, code="invalid-tools") from None


def _any_of(names: set[str]) -> re.Pattern[str]:
    """Return a pattern of the names, longest first, and of the marking characters. A lookahead on
    first characters keeps it fast for thousands of names."""
    longest_first = sorted({*names, OPEN, CLOSE}, key=lambda name: (-len(name), name))
    first = "".join(sorted({re.escape(name[0]) for name in longest_first}))
    return re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, longest_first))})")


def _mark(value: Any, names: re.Pattern[str]) -> Any:
    """Mark the names of tokens in a text, or in all texts of a JSON value, as plain text."""
    if isinstance(value, dict):
        return {_mark(key, names): _mark(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark(item, names) for item in value]
    if not isinstance(value, str):
        return value
    return names.sub(lambda found: f"{OPEN}{found[0].encode().hex()}{CLOSE}", value)
