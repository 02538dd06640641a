"""Algorithms: what to learn. Each reads like its paper, from its file or its folder's algorithm.py.

The public names are those of __init__.pyi; each is imported when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
