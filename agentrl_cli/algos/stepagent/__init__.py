"""StepAgent: step-wise learning from experts. Begin with algorithm.py."""
