from .collector import CorpusCollector as CorpusCollector
from .math import MathCorpus as MathCorpus
from .pretraining import Pretraining as Pretraining
from .tau import TauCorpus as TauCorpus
from .twentyq import TwentyQCorpus as TwentyQCorpus
from .wiki import WikiCorpus as WikiCorpus
