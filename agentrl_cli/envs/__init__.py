"""Worlds in which agents act. They know `types` only: no torch, no tokenizer, no configuration object."""
