"""NLAC: natural language actor-critic. Begin with algorithm.py."""
