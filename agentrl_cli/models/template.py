"""The chat template of a model: that of its tokenizer, a file, or a shipped one. Its requirements
are checked in rollout/chat_template.py."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedTokenizerBase as Tokenizer

from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError

FOLDER = Path(__file__).parent / "chat_templates"
SHIPPED = {file.stem: file for file in sorted(FOLDER.glob("*.jinja"))}
EXTENSIONS = ("jinja2.ext.loopcontrols", "jinja2.ext.do")
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # tags of transformers
MAX_NUMBER = 1_000_000
WIDE = re.compile(r"(?:%[^%A-Za-z]*|\{[^{}]*:[^{}]*)\d{7}")  # a format of a million characters
SYSTEM_IN_USER = (  # put before a template: merges the system message into the first user message
    "{%- if messages[0].role == 'system' -%}"
    "{%- set system, rest = messages[0].content, messages[1:] -%}"
    "{%- if rest and rest[0].role == 'user' -%}"
    "{%- set system, rest = system ~ '\\n\\n' ~ rest[0].content, rest[1:] -%}"
    "{%- endif -%}"
    "{%- set messages = [{'role': 'user', 'content': system}] + rest -%}"
    "{%- endif %}"
)


def give_template(tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Set the tokenizer's template by `model.chat_template` and `model.system_role`; it is saved
    with the tokenizer. Raises UserError if there is none."""
    if config.chat_template is not None:
        tokenizer.chat_template = template_text(config.chat_template)
    own = tokenizer.chat_template
    if not own:
        line = f"the tokenizer of '{config.path}' has no chat template"
        raise UserError(f"{line}; give model.chat_template: {_choice()}", code="no-template")
    texts = own if isinstance(own, dict) else {"": own}  # some have a second one, for tools
    for text in texts.values():
        validate_length(text)
    if config.system_role == "user":
        folded = {name: f"{SYSTEM_IN_USER}{text}" for name, text in texts.items()}
        tokenizer.chat_template = folded if isinstance(own, dict) else folded[""]


def validate_length(text: str) -> None:
    """Raise UserError for arithmetic that can run for hours or fill the memory in one operation,
    which no time limit can stop: powers, products of products, numbers of a million or more, and
    formats with such a width. A text with a syntax error passes; rendering refuses it."""
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        parsed = Environment(extensions=EXTENSIONS).parse(GENERATION.sub("", text))
    except TemplateSyntaxError:
        return
    products = list(parsed.find_all(nodes.Mul))
    constants = [constant.value for constant in parsed.find_all(nodes.Const)]
    numbers = [value for value in constants if isinstance(value, int | float)]
    if (
        any(parsed.find_all(nodes.Pow))
        or any(isinstance(side, nodes.Mul) for p in products for side in (p.left, p.right))
        or any(abs(number) >= MAX_NUMBER for number in numbers)
        or any(WIDE.search(value) for value in constants if isinstance(value, str))
    ):
        line = "the chat template has a power, a product of products or a number of a million"
        remedy = f"write it without, because it may never end, or give {_choice()}"
        raise UserError(f"{line}; {remedy}", code="endless-template")


def template_text(given: str) -> str:
    """Return the text of a shipped template or a file, or `given` if it is a template itself.
    Raises UserError if there is none."""
    if _is_template(given):
        return given
    try:
        file = SHIPPED.get(given, Path(given).expanduser())
        text = file.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        line = f"cannot read the chat template '{given}' ({reason}); give {_choice()}"
        raise UserError(line, code="unreadable-template") from None
    if not _is_template(text) or "${" in text:  # OmegaConf would read ${ as an interpolation
        problem = "holds '${'" if "${" in text else "is not a template"
        line = f"the file '{given}' {problem}; give another text, or {_choice()}"
        raise UserError(line, code="unreadable-template")
    return text


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _choice() -> str:
    return f"a file, or one of {', '.join(SHIPPED)}"
