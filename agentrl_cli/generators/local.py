"""Chat with a causal language model in this process, for simulators; hf.py is for training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Annotated, Any

from pydantic import Field

from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Message

LOCK = Lock()  # the random state of torch belongs to the process


@dataclass(kw_only=True)
class LocalChat:
    """Samples an answer with the model's chat template: `chat(messages, seed)`.

    The same seed gives the same answer. `path` is a Hugging Face name or folder; the model is
    loaded at the first call.
    """

    path: Annotated[str, Field(description="Hugging Face name or folder of the model.")]
    device: Annotated[str, Field(description="Device of the model, as cpu or cuda:1.")]
    temperature: Annotated[float, Field(ge=0, description="Sampling temperature.")]
    max_tokens: Annotated[int, Field(ge=1, description="Tokens of an answer at most.")]

    def __call__(self, messages: list[Message], seed: int) -> str:
        """Return the model's answer. Raises UserError if the model cannot be loaded."""
        import torch

        with LOCK:
            model, tokenizer = _load(self.path, self.device)
        rows = [{"role": message.role, "content": message.content} for message in messages]
        text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(str(text), return_tensors="pt", add_special_tokens=False)
        prompt = prompt.to(model.device)
        options: dict[str, Any] = {"max_new_tokens": self.max_tokens, "do_sample": False}
        if self.temperature:
            options |= {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        with LOCK, torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            options["pad_token_id"] = tokenizer.pad_token_id
            ids = model.generate(**prompt, **options)
        written = ids[0, prompt["input_ids"].shape[1] :]
        return str(tokenizer.decode(written, skip_special_tokens=True))


@lru_cache(maxsize=2)
def _load(path: str, device: str) -> tuple[Any, Any]:
    """Return the model, without the generation settings of its folder, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        line = f"model '{path}' cannot be loaded ({str(error).splitlines()[0]}); name another"
        raise UserError(line, code="unknown-model") from None
    ends = model.generation_config.eos_token_id if model.generation_config else None
    model.generation_config = GenerationConfig(eos_token_id=ends)
    return model.to(device).eval(), tokenizer
