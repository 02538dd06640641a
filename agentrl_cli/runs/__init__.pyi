from .loggers import JsonlLogger as JsonlLogger
from .loggers import TrackerLogger as TrackerLogger
from .loggers import WandbLogger as WandbLogger
from .run import Logger as Logger
from .run import Run as Run
