from .actors import RayCluster as RayCluster
from .collector import Collector as Collector
from .collector import PlayCollector as PlayCollector
from .replay_buffer import ReplayBuffer as ReplayBuffer
