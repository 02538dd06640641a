"""The chat template that a model is trained with: its tokenizer's own, a file, or a shipped one.
What a template has to keep to is checked where dialogues become ids (rollout/chat_template.py)."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedTokenizerBase as Tokenizer

from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError

FOLDER = Path(__file__).parent / "chat_templates"
SHIPPED = {file.stem: file for file in sorted(FOLDER.glob("*.jinja"))}
EXTENSIONS = ("jinja2.ext.loopcontrols", "jinja2.ext.do")
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # tags of transformers' own
MOST_NUMBER = 1_000_000
SYSTEM_IN_USER = (  # stands before a template and changes the messages that it gets
    "{%- if messages[0].role == 'system' -%}"
    "{%- set system, rest = messages[0].content, messages[1:] -%}"
    "{%- if rest and rest[0].role == 'user' -%}"
    "{%- set system, rest = system ~ '\\n\\n' ~ rest[0].content, rest[1:] -%}"
    "{%- endif -%}"
    "{%- set messages = [{'role': 'user', 'content': system}] + rest -%}"
    "{%- endif %}"
)


def give_template(tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Make the tokenizer write as `model.chat_template` and `model.system_role` say; what saves it
    saves that. Raises UserError where there is no template."""
    if config.chat_template is not None:
        tokenizer.chat_template = template_text(config.chat_template)
    own = tokenizer.chat_template
    if not own:
        line = f"the tokenizer of '{config.path}' has no chat template"
        raise UserError(f"{line}; give one with model.chat_template: {_choice()}")
    texts = own if isinstance(own, dict) else {"": own}  # some have one more, for tools
    for text in texts.values():
        refuse_endless(text)
    if config.system_role == "user":
        folded = {name: f"{SYSTEM_IN_USER}{text}" for name, text in texts.items()}
        tokenizer.chat_template = folded if isinstance(own, dict) else folded[""]


def refuse_endless(text: str) -> None:
    """Raise UserError for arithmetic with which a template of one line computes for hours or fills
    the memory, in a single operation that no limit of time can end: powers, factors and widths of
    a million and more, products of products. A text that is no template is refused later, where
    it is rendered."""
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        parsed = Environment(extensions=EXTENSIONS).parse(GENERATION.sub("", text))
    except TemplateSyntaxError:
        parsed = nodes.Template([])
    what = ""
    if next(parsed.find_all(nodes.Pow), None):
        what = "raises a number to a power (**)"
    elif any(isinstance(side, nodes.Mul) for product in parsed.find_all(nodes.Mul)
             for side in (product.left, product.right)):  # fmt: skip
        what = "multiplies a product again"
    elif large := [c.value for c in parsed.find_all(nodes.Const) if _is_large(c.value)]:
        what = f"has the number {str(large[0])[:20]}"
    if what:
        line = f"the chat template {what}, which may compute for ever or fill the memory"
        raise UserError(f"{line}; write the template without it, or give {_choice()}")


def _is_large(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) >= MOST_NUMBER


def template_text(given: str) -> str:
    """The text of a shipped template, of a file, or as given where it is a template itself. Raises
    UserError where there is none."""
    if _is_template(given):
        return given
    try:
        file = SHIPPED.get(given, Path(given).expanduser())
        text = file.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        line = f"cannot read the chat template '{given}' ({reason})"
        raise UserError(f"{line}; give {_choice()}") from None
    if not _is_template(text) or "${" in text:  # a configuration keeps it and reads ${ as its own
        holds = "holds '${'" if "${" in text else "holds no template"
        raise UserError(f"the file '{given}' {holds}; give another text, or {_choice()}")
    return text


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _choice() -> str:
    return f"a file, or one of those shipped ({', '.join(SHIPPED)})"
