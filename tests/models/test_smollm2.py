"""SmolLM2 from the package index: its template, its tokens, and an answer. In the user's cache."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from agentrl_cli.config.compose import as_dataclass, compose
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message
from agentrl_cli.generators import HFGenerator
from agentrl_cli.generators.base import Sampling
from agentrl_cli.models.fetch import find_model
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.rollout.chat_template import Chat
from tests.builders.models import SPECS

pytestmark = pytest.mark.slow
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
DIALOGUE = [
    Message("system", "Play the game."),
    Message("user", "Begin with 12 cats."),
    Message("assistant", "Is it alive?"),
    Message("user", "Yes."),
    Message("assistant", "Is it\n\na cat?"),
    Message("user", "No."),
]


@pytest.fixture(scope="module")
def folder() -> str:
    try:
        return find_model("smollm2")
    except UserError as error:
        if error.code != "no-download":
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("first", [0, 1])
def test_prompts_are_those_of_transformers(folder: str, first: int):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat, messages = Chat(tokenizer), DIALOGUE[first:]
    chat.check()
    rows = [{"role": m.role, "content": m.content} for m in messages]
    options = {"add_generation_prompt": True, "return_dict": False}
    assert chat.start(messages) == tokenizer.apply_chat_template(rows, **options)
    assert (SYSTEM in chat.text_of(chat.start(messages))) == (first == 1)
    assert chat.stop_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_model_answers_a_question(folder: str):
    config = as_dataclass(compose(["model=smollm2"]).model, ModelConfig)
    models: Any = ModelSet(config, {"policy": SPECS["policy"]}, "cpu", 0)
    chat = Chat(models.tokenizer)
    generator = HFGenerator(models=models, max_batch=1, cache_tokens=100, cache_mib=None)
    question = Message("user", "What is the capital of France? Answer in one sentence.")
    sampling = Sampling(max_tokens=40, temperature=0.0, stop_ids=chat.stop_ids)
    ((answer,),) = generator.generate([chat.start([question])], [0], sampling)
    assert "Paris" in chat.decode(answer.ids) and answer.finish_reason == "stop"
