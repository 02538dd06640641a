"""StepAgent: step-wise reinforcement learning from an expert."""
