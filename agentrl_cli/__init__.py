"""agentrl: train and compare LLM agents beyond plain policy gradients.

The public API is in __init__.pyi. Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.3.0"
