"""Algorithms: what to learn. Each is one short file that reads like its paper."""
