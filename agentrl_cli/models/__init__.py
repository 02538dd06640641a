"""All weights of a run: the named models (`model_set`), one differentiable pass (`policy`). The
public names are those of __init__.pyi; each is imported when it is first asked for."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
