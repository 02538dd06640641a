"""The run folder: what is kept of a run, where it lies, who else is told. The public names are
those of __init__.pyi; each is imported when it is first asked for."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
