from .collector import Collector as Collector
from .collector import PlayCollector as PlayCollector
from .ray_cluster import RayCluster as RayCluster
from .replay_buffer import ReplayBuffer as ReplayBuffer
