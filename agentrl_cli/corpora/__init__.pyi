from .collector import CorpusCollector as CorpusCollector
from .math import MathCorpus as MathCorpus
from .tau import TauCorpus as TauCorpus
from .twentyq import TwentyQCorpus as TwentyQCorpus
