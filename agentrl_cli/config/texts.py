"""What stands in a configuration besides what its files and overrides say: texts that an algorithm
takes from groups of their own, and keys that a run was stored without."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentrl_cli.core import files

if TYPE_CHECKING:
    from omegaconf import DictConfig

TEXT_GROUPS = ("prompts",)
NAMING = ("algo", "rollout")  # nodes that name them: a corpus is written for an algorithm
ADDED_KEYS = {
    "save_minutes": 0.0,
    "keep": "last",
}  # with what it means where a run was stored before there was one


def put_texts(cfg: DictConfig) -> None:
    """Write what the groups of texts hold where the algorithm names it, and take their nodes away:
    an algorithm's own node says all that it is run with."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for node in NAMING:
        if not OmegaConf.is_dict(cfg.get(node)):
            continue
        plain: Any = OmegaConf.to_container(cfg[node], resolve=False)
        for key, value in files.flatten(plain).items():
            if isinstance(value, str) and value.startswith("${prompts."):
                with suppress(OmegaConfBaseException):  # told of where the node is read
                    OmegaConf.update(cfg[node], key, OmegaConf.select(cfg, f"{node}.{key}"))
    for group in TEXT_GROUPS:
        cfg.pop(group, None)


def add_later_keys(cfg: DictConfig) -> None:
    """Give a stored configuration the keys that came later, as the run behaved without them."""
    from omegaconf import OmegaConf

    for key, value in ADDED_KEYS.items():
        if key not in cfg:
            cfg[key] = value
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    choices, env = plain.get("choices"), plain.get("env")
    if isinstance(choices, dict) and choices.get("env") == "math" and not (env or {}).get("data"):
        cfg.choices.env = "arithmetic"  # which was called math before the benchmark was
