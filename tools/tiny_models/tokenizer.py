"""Builds the tokenizer of all bundled models: `python -m tools.tiny_models.tokenizer`.

It is a byte-level BPE with the words of the built-in environments as single tokens. Digits are
separate tokens, and other text falls back to bytes. A new tokenizer invalidates every shipped
weight file.
"""

from __future__ import annotations

import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl_cli.envs.twentyq.world import load_world
from agentrl_cli.envs.wiki.generator import VOCABULARY
from agentrl_cli.models.load import TINY

TOKENIZER_FOLDER = TINY
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPLIT_PATTERN = r" ?[A-Za-z]+| ?[0-9]|\\[A-Za-z]+| ?[^\sA-Za-z0-9]|\s"
VOCABULARY_SIZE = 2048  # rows of the embedding in config.json
SHARED_SENTENCES = """
Find the hidden object with yes or no questions. The last line of a turn asks. Answer the questions.
Maybe. Name what fits. Go on. Ask. Yes. No. Sometimes. Say what each answer tells.
You win. You lose. It was left I cannot answer that. Yes. No. Sometimes. Thought: Action: Answer:
Predict the next response, how the rest goes, and the outcome: success or failure. \
Forecast this turn.
The response was: A forecast from there: Write one forecast of this turn.
It tells much some little nothing. Success. Failure. Forecasts of this turn: Forecasts of \
another turn:
Judge this turn. Optimality: Yes. Optimality: No. It tells much and ends as well as another turn.
ends worse than another turn. Close. Near. Far. Critique: Write this turn again. What is it?
Episodes from here: Put together what came of this turn. Check this turn. Right. Wrong.
New. Asked before. Known. Unclear. Ruled out. Too early. is wrong. is right. Ask for more first.
Ask yes or no first. Look first. Ask for the zip first. Not that order. Not that item. \
Not the status.
Tell me more. Is it nice? Is it like a dream? Is it old? Do you like it? Where is it? Is it mine? \
How many are there? Is it funny?
Solve the problem. Put the answer in a box. \\boxed{} \\frac{} \\sqrt{} \\cdot \\times
Correct. Wrong. No box. Try again. The answer is
plus minus times divided equals total sum difference product half each more less than altogether \
how many
has have buys gives sells apples books coins boxes cost costs dollars price step first then so \
therefore people alike card
wrong right correct again try error check x y n a b c the of and to in for is are was were be by \
on at with
order orders item items user id name email zip return exchange cancel refund pending delivered \
payment cancelled returned transfer Transferred
credit card gift address confirm tool call name arguments reason details product found find get \
list status
please sorry help thank you hello what would like want my your it that this do does did can \
could will
SEARCH OPEN FIND BACK SAVE SUBMIT page pages line lines results result of no such link links title \
article section saved submitted next previous found nothing read text encyclopedia topic question \
Search the encyclopedia and submit the answer. Save the lines that prove it. Collect the lines \
about the topic. Which who when where how many both first last same older younger earlier later
person people man woman child born died lived married wrote painted composed founded built led \
taught studied won visited discovered ruled worked writer painter composer founder architect \
teacher student king queen general mayor poet scientist explorer parents mother father daughter son
place places city town village river lake mountain island country region capital harbour bridge \
castle tower museum school university library church market station lies near north south east \
west coast flows through people live there
work works book novel poem play opera song symphony painting statue film published finished shown \
event events battle fair flood fire treaty war festival race council began ended took place year \
years century month January February March April May June July August September October November \
December one two three four five six seven eight nine ten number count before after during between
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on the sentences and words of the built-in environments."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])  # pyright: ignore
    bpe.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE, min_frequency=2, special_tokens=SPECIAL_TOKENS,
        show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator(sentences(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>", chat_template=CHAT_TEMPLATE,
        additional_special_tokens=SPECIAL_TOKENS[2:], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def sentences() -> list[str]:
    """Return the sentences of the small set and the shared ones often, those of the full set less
    often. A shared sentence also occurs on a line without others, because the first word of a
    message is a different token. Names of a start and an end become two tokens."""
    small, full = (_world_sentences(name) for name in ("small", "full"))
    lines = SHARED_SENTENCES.splitlines()
    alone = [sentence for line in lines for sentence in re.split(r"(?<=[.:?]) ", line)]
    starts, ends = (VOCABULARY[key].split() for key in ("name_starts", "name_ends"))
    names = [start + end for start in starts for end in ends]
    return small * 20 + full * 2 + (lines + alone) * 20 + names + [f"in {name}" for name in names]


def _world_sentences(name: str) -> list[str]:
    world = load_world(name)
    guesses = [world.guess(name) for name in world.objects]
    questions = [text for key in world.attributes for text, _ in world.phrasings(key)]
    return guesses + questions


if __name__ == "__main__":
    build_tokenizer().save_pretrained(str(TOKENIZER_FOLDER))
