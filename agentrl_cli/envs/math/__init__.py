"""MATH: problems with one right answer, a grader that can be trusted, reasoning as turns."""

from agentrl_cli.envs.math.grader import Grade, grade

__all__ = ["Grade", "grade"]
