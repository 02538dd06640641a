"""Worlds in which agents act. They know `types` only: no torch, tokenizer or configuration."""
