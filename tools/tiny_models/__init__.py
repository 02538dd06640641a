"""Rebuild the bundled models: `python -m tools.tiny_models ENV` (see `__main__.py`)."""

from tools.tiny_models.collector import CorpusCollector
from tools.tiny_models.courier import CourierCorpus
from tools.tiny_models.math import MathCorpus
from tools.tiny_models.pretraining import Pretraining
from tools.tiny_models.tau import TauCorpus
from tools.tiny_models.twentyq import TwentyQCorpus
from tools.tiny_models.wiki import WikiCorpus

__all__ = [
    "CorpusCollector",
    "CourierCorpus",
    "MathCorpus",
    "Pretraining",
    "TauCorpus",
    "TwentyQCorpus",
    "WikiCorpus",
]
