"""agentrl: train and compare LLM agents beyond plain policy gradients."""

__version__ = "0.3.0"
