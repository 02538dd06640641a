"""A tiny tokenizer with a chat template and tiny random models, built in memory for tests."""

from __future__ import annotations

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = [
    "You play Twenty Questions. Ask a yes or no question, or guess: is it a cat?",
    "Is it alive? Yes. No. Can it fly? Is it bigger than a chair? I guess the answer is a dog.",
    "system user assistant the of and to in that one two three four five six seven eight nine ten",
]


def tiny_tokenizer(
    template: str = CHATML, special: list[str] | None = None, eos: str = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 400 tokens; `special` are the template's own tokens."""
    names = SPECIAL if special is None else special
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in names],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, pad_token=names[0], additional_special_tokens=names
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(
    tokenizer: PreTrainedTokenizerFast,
    kind: str = "qwen2",
    layers: int = 2,
    width: int = 64,
    head: int = 32,
) -> PreTrainedModel:
    """A random `qwen2`, `llama` or `mistral` (which looks back 8 tokens) of two layers with grouped
    key/value heads of width `head`, in evaluation mode."""
    torch.manual_seed(0)
    config_class, model_class, more = {
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {}),
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
        "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": 8}),
    }[kind]
    config = config_class(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=layers, num_attention_heads=width // head, num_key_value_heads=1,
        max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, **more,
    )  # fmt: skip
    return model_class(config).eval()
