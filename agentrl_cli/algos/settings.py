"""Settings of the algorithms: one dataclass each, validated before anything heavy is imported.

This module imports neither torch nor transformers. Every field is `Annotated` with its type and a
pydantic `Field` that holds its limits and the description that `agentrl config` prints. Default
values live in `conf/algo/`.
"""

from __future__ import annotations

# --- optimizers and shared parts ---

# --- SFT, RFT ---

# --- GRPO ---

# --- PPO ---

# --- ArCHer ---

# --- DPO ---

# --- NLAC ---

# --- Self-AC ---

# --- StepAgent ---
