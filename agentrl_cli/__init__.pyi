from .algos.base import Algorithm as Algorithm
from .api import Callback as Callback
from .api import Config as Config
from .api import Diagnosis as Diagnosis
from .api import Run as Run
from .api import check_env as check_env
from .api import compare as compare
from .api import compose as compose
from .api import diagnose as diagnose
from .api import evaluate as evaluate
from .api import load_policy as load_policy
from .api import make_env as make_env
from .api import resume as resume
from .api import train as train
from .core.errors import UserError as UserError
from .core.types import Episode as Episode
from .core.types import Message as Message
from .core.types import Step as Step
from .core.types import Task as Task
from .envs.base import Env as Env
from .envs.math.grader import grade as grade

__version__: str
