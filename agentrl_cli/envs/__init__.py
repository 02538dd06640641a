"""Worlds in which agents act. They know `core` only: no torch, tokenizer or configuration.

The public names are those of __init__.pyi; each is imported at its first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
