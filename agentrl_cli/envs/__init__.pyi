from .base import Env as Env
from .check import check_env as check_env
from .math.env import MathEnv as MathEnv
from .reasoning_gym import ReasoningGym as ReasoningGym
from .tau.env import TauBench as TauBench
from .twentyq.env import TwentyQ as TwentyQ
