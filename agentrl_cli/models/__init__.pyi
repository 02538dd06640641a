from .model_set import ModelSet as ModelSet
from .specs import ModelSpec as ModelSpec
from .specs import OptimizerSpec as OptimizerSpec
