"""Settings of generators whose modules import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from agentrl_cli.core.errors import require_above, require_at_least


@dataclass(kw_only=True)
class HFGeneratorConfig:
    """Settings of HFGenerator."""

    max_batch: Annotated[int, Field(ge=1, description="Sequences that are decoded together.")]
    cache_tokens: Annotated[
        int, Field(ge=0, description="Tokens whose keys and values are cached between calls.")
    ]
    cache_mib: Annotated[
        float | None,
        Field(gt=0, description="Limit in MiB of all keys and values. null: half of the free memory"
              " of a CUDA device, no limit on a CPU."),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        require_at_least(1, max_batch=self.max_batch)
        require_at_least(0, cache_tokens=self.cache_tokens)
        require_above(0, cache_mib=1 if self.cache_mib is None else self.cache_mib)
