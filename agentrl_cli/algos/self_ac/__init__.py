"""Self-AC: actor and critic in one transformer. Begin with algorithm.py."""
