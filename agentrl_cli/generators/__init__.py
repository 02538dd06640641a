"""Engines that turn prompts of token ids into completions. They know `types` only."""
