from .base import Completion as Completion
from .base import Generator as Generator
from .base import Sampling as Sampling
from .endpoint import OpenAIChat as OpenAIChat
from .hf import HFGenerator as HFGenerator
from .local import LocalChat as LocalChat
from .scripted import ScriptedGenerator as ScriptedGenerator
from .tree_search import TreeSearch as TreeSearch
