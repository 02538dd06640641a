"""Errors that agentrl raises on purpose. Any other exception is a bug."""

from __future__ import annotations

from typing import Any


class UserError(Exception):
    """A mistake that the user can correct; the command exits with code 2 and prints no traceback.

    The message names the value and the remedy. `code` is a stable kebab-case name of the kind of
    mistake, for tests and for programs that call this one.
    """

    exit_code = 2
    default_code = "invalid"

    def __init__(self, message: object = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code


class RunAborted(UserError):
    """Something outside the run failed; training is saved before it stops. Exit code 1."""

    exit_code = 1
    default_code = "run-aborted"


class DistributedError(RunAborted):
    """A process of this run ended, is at another step, or has to end, so nothing can be saved."""

    default_code = "distributed"


class EpisodeError(Exception):
    """An episode failed: the error is recorded on the episode and counted by `kind`."""

    kind = "crash"


class ContractError(EpisodeError):
    """An environment returned an invalid value, such as a reward that is not a number."""

    kind = "contract"


class SimulatorError(EpisodeError):
    """A model that the environment calls, such as a simulated user, returned no answer."""

    kind = "simulator"


class EmptyAnswer(SimulatorError):
    """The answer of a simulator holds no text."""


class RefusedPrompt(SimulatorError):
    """The model refuses this prompt, for example because it is too long; others may be answered."""


class EnvTimeout(EpisodeError):
    """A call of the environment exceeded its time limit."""

    kind = "timeout"


class GeneratorError(EpisodeError):
    """The generator returned no completion for some prompts of a call.

    `answers` holds the completions of each prompt, or None for a prompt without any.
    """

    kind = "generator"

    def __init__(self, line: str, answers: list[Any]) -> None:
        super().__init__(line)
        self.answers = answers


class LostActor(EpisodeError):
    """The process that played the episode ended or does not respond."""

    kind = "actor"


FAILURE_KINDS = ("crash", "contract", "simulator", "timeout", "generator", "actor")


def require_at_least(least: float, **values: float) -> None:
    """Raise UserError for the first value below `least`."""
    for name, value in values.items():
        if not value >= least:
            raise UserError(f"{name} is {value}; give at least {least}", code="too-small")


def require_at_most(most: float, **values: float) -> None:
    """Raise UserError for the first value above `most`."""
    for name, value in values.items():
        if not value <= most:
            raise UserError(f"{name} is {value}; give at most {most}", code="too-large")


def require_fraction(**values: float) -> None:
    """Raise UserError for the first value outside 0 to 1."""
    require_at_least(0, **values)
    require_at_most(1, **values)
