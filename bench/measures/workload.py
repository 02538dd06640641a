"""The work of both sides: a random model with its tokenizer, dialogues of a given number of tokens,
and a batch of finished episodes; and how our side does it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from agentrl_cli.config.compose import check, compose
from agentrl_cli.config.settings import LoraConfig
from agentrl_cli.core.types import Episode, Message, Step, Task
from agentrl_cli.envs.base import Env
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.models.fetch import find_model
from agentrl_cli.models.model_set import ModelSet
from agentrl_cli.models.specs import ModelSpec, OptimizerSpec
from agentrl_cli.rollout.chat_template import Chat
from agentrl_cli.rollout.play import EpisodeStart, play
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.training.endpoint import assemble_endpoint
from agentrl_cli.training.learner import Learner
from bench.peers.serve import Stopwatch
from tests.algos.test_grpo import grpo
from tests.builders.models import model_config
from tests.builders.tiny_models import SPECIAL, tiny_tokenizer

TEMPLATE = (  # ChatML that can also show calls of tools, which TRL asks for
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ ((message['tool_calls'] | tojson) if message['tool_calls'] else '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LORA = LoraConfig(rank=8, alpha=16, targets=["q_proj", "v_proj"])
CONTEXT = 4096
RATE = OptimizerSpec(lr=1e-6)


@dataclass(frozen=True)
class Sizes:
    """The amount of work. There are `episodes` episodes in groups of `group`, which share a
    prompt of `prompt` tokens. Each reply has `new` tokens, and each answer of the environment
    `seen`. Episodes to train on have up to `turns` turns.

    Without `pretrained` the model is a random one of `layers` and `width`. Updates train on
    `updated` episodes, and with `lora` they train adapters. `word` is a text of one token.
    Medians are of `repeats` rounds.
    """

    layers: int = 4
    width: int = 128
    episodes: int = 16
    group: int = 8
    prompt: int = 400
    new: int = 16
    seen: int = 16
    turns: int = 12
    updated: int = 16
    pretrained: str | None = None
    dtype: str = "float32"
    lora: LoraConfig | None = None
    word: str = "z"
    repeats: int = 5


SMOLLM2 = Sizes(
    episodes=64, prompt=100, turns=10, pretrained="smollm2", dtype="bfloat16", word=" go",
    repeats=2, lora=LoraConfig(rank=16, alpha=32, targets=["all-linear"]),
)  # fmt: skip
QUICK = Sizes(
    layers=1, width=64, episodes=4, group=2, prompt=24, new=2, seen=16, turns=3, repeats=1
)  # fmt: skip


@dataclass(kw_only=True)
class Dialogue(Env):
    """Asks, answers every reply with the same text, and ends after `turns`."""

    asked: str
    replied: str
    turns: int
    role: str = "tool"

    def system(self) -> str:
        return "Play."

    def tasks(self, split: str) -> list[Task]:
        return [Task("0", split, {})]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.played = 0
        return [Message("user", task.id + self.asked)]

    def step(self, action: str) -> Step:
        self.played += 1
        return Step([Message(self.role, self.replied)], 0.0, self.played == self.turns, False)


def write_model(folder: Path, sizes: Sizes) -> None:
    """Write a model with its tokenizer to a folder. A random model has the shape of Qwen2, and
    a million parameters at the default sizes."""
    if sizes.pretrained is not None:
        source = Path(find_model(sizes.pretrained))
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).symlink_to(source / name)
        tokenizer = AutoTokenizer.from_pretrained(source)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        return
    tokenizer, width = tiny_tokenizer(TEMPLATE), sizes.width
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=sizes.layers, num_attention_heads=width // 32, num_key_value_heads=2,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True, initializer_range=0.2,
        eos_token_id=SPECIAL.index("<|im_end|>"), pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    logging.disable_progress_bar()
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Ours:
    """Our side, with a model from a folder of `write_model`."""

    def __init__(self, folder: Path, sizes: Sizes, lora: LoraConfig | None = None) -> None:
        self.folder, self.sizes, self.watch = folder, sizes, Stopwatch()
        spec = {"policy": ModelSpec(kind="trained", generates=True, optimizer=RATE)}
        self.models: Any = ModelSet(
            model_config(folder, dtype=sizes.dtype, lora=lora), spec, "cpu", 0
        )
        self.chat = Chat(self.models.tokenizer)
        self.engine = HFGenerator(self.models, max_batch=256, cache_tokens=200_000)
        self.engine.generate = self.watch.wrap(self.engine.generate)
        self.asked = sizes.word * (sizes.prompt - len(self._prompt("0")))
        self.replied = sizes.word * (sizes.seen - len(self._reply("")))

    def rollout(self, turns: int) -> dict[str, float]:
        """Return the CPU seconds of generation of a batch of episodes, and the number of
        tokens."""
        self.watch.take()
        episodes = self.play(turns)
        made = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
        return {"seconds": self.watch.take(), "tokens": made}

    def play(self, turns: int) -> list[Episode]:
        """Return a batch of episodes, played with an empty cache; every other one is
        won."""
        self.engine.clear()
        sampling = Sampling(max_tokens=self.sizes.new, temperature=1.0, stop_ids=())
        played = play(
            self._starts(), partial(Dialogue, asked=self.asked, replied=self.replied, turns=turns),
            self.chat, self.engine, sampling, max_seq_len=CONTEXT,
        )  # fmt: skip
        for number, episode in enumerate(played):
            episode.turns[-1].reward = float(number % 2)
        return played

    def finished(self) -> list[Episode]:
        """Return episodes with a third of the turns up to all turns, as in an environment
        where some end early."""
        most, episodes = self.sizes.turns, self.play(self.sizes.turns)[: self.sizes.updated]
        least = most // 3
        for number, episode in enumerate(episodes):
            del episode.turns[least + number * 5 % (most - least + 1) :]
            episode.turns[-1].reward = float(number % 2)
        return episodes

    def work(self, episodes: list[Episode]) -> dict[str, Any]:
        """Return the work for another library: the same prompts, and these episodes to
        train on."""
        sizes, tasks = self.sizes, [start.task.id for start in self._starts()]
        messages = [{"role": "system", "content": "Play."}]
        rows = [_row(episode) for episode in episodes]
        return {
            "model": str(self.folder), "group": sizes.group, "new_tokens": sizes.new,
            "prompts": [[*messages, {"role": "user", "content": t + self.asked}] for t in tasks],
            "prompt_ids": [self._prompt(task + self.asked) for task in tasks],
            "reply": self.replied, "reply_ids": self._reply(self.replied),
            "dtype": sizes.dtype, "lora": asdict(LORA),
            "update": {
                "rows": rows, "episodes_per_step": sizes.group, "lr": RATE.lr,
                "lora": sizes.lora and asdict(sizes.lora),
            },
        }  # fmt: skip

    def _starts(self) -> list[EpisodeStart]:
        groups = [str(i // self.sizes.group) for i in range(self.sizes.episodes)]
        tasks = [Task(group, "train", {}) for group in groups]
        return [EpisodeStart(task, task.id, i, str(i)) for i, task in enumerate(tasks)]

    def _prompt(self, asked: str) -> list[int]:
        return self.chat.start([Message("system", "Play."), Message("user", asked)])

    def _reply(self, replied: str) -> list[int]:
        return self.chat.extend([Message("tool", replied)], None)


class Served:
    """Our play with a server, with the defaults of `model=endpoint`. The user's messages are
    those of the dialogues of `ours`, and `live` episodes run at a time."""

    def __init__(self, ours: Ours, url: str, episodes: int, turns: int, live: int) -> None:
        chosen = ["model=endpoint", f"model.url={url}", "model.name=stub", "env=twentyq"]
        limit = f"rollout.max_concurrent_episodes={live}"
        self.collector = assemble_endpoint(check(compose([*chosen, limit]))).collector
        said = {"asked": ours.asked, "replied": ours.replied, "role": "user"}
        self.make_env = partial(Dialogue, **said, turns=turns)
        self.episodes, self.seeds = range(episodes), count()  # new seeds: no answer is cached

    def rollout(self) -> dict[str, float]:
        """Return the CPU seconds of the episodes."""
        task = Task("0", "train", {})
        starts = [EpisodeStart(task, "0", next(self.seeds), str(i)) for i in self.episodes]
        began = time.process_time()
        self.collector.play(
            starts, self.collector.sampling, max_failure_rate=0.0, make_env=self.make_env
        )
        return {"seconds": time.process_time() - began}


class Updates:
    """Our updates of GRPO on the same episodes, in `steps` optimizer steps: log-probs, forward,
    backward, clipping and AdamW."""

    def __init__(
        self, folder: Path, episodes: list[Episode], steps: int, sizes: Sizes = QUICK
    ) -> None:
        self.episodes, self.steps = episodes, steps
        trained = sum(len(turn.action_ids) for e in episodes for turn in e.turns)
        bound = trained if steps == 1 else -(-trained // steps) + max(map(_trained, episodes)) // 2
        config = model_config(folder, dtype=sizes.dtype, lora=sizes.lora)
        self.algo, models = grpo(config, minibatch_tokens=bound, optimizer=RATE)
        self.learner = Learner(
            models, self.algo.models(), microbatch_tokens=8192, seed=0, publish=lambda name: None
        )

    def update(self) -> dict[str, float]:
        """Return the CPU seconds of an update, and its number of optimizer steps."""
        began = time.process_time()
        found = self.learner.run(self.algo.update(self.episodes, ReplayBuffer(None, 1)), 0)
        return {"seconds": time.process_time() - began, "steps": found["policy/steps"]}


def _trained(episode: Episode) -> int:
    return sum(len(turn.action_ids) for turn in episode.turns)


def _row(episode: Episode) -> dict[str, Any]:
    """Return an episode as token ids, mask of sampled tokens, length of its prompt, and
    advantage."""
    turns = episode.turns
    ids = [i for turn in turns for i in turn.observation_ids + turn.action_ids]
    mask = [m for t in turns for m in [0] * len(t.observation_ids) + [1] * len(t.action_ids)]
    prompt = len(turns[0].observation_ids)
    return {"ids": ids, "mask": mask, "prompt": prompt, "advantage": 2 * episode.reward - 1}
