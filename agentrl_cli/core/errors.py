"""The errors that agentrl raises on purpose; everything else is a bug and may crash."""

from __future__ import annotations

from typing import Any


class UserError(Exception):
    """A mistake the user can mend: one sentence with the value and the remedy; exit code 2."""

    exit_code = 2


class StoppedRun(UserError):
    """What a run needs from outside broke (too many episodes failed, a key was refused): training
    is saved before it stops; exit code 1."""

    exit_code = 1


class LostRank(StoppedRun):
    """Another process of this run is gone, or is somewhere else in it: nothing can be saved."""


class EpisodeError(Exception):
    """An episode broke: recorded on the episode, not raised further. `kind` says by what: the world
    raised an error."""

    kind = "crash"


class ContractError(EpisodeError):
    """The world answered what no world may, as a reward that is no number."""

    kind = "contract"


class SimulatorError(EpisodeError):
    """A model that the world asks, as one that plays the user, gave no answer."""

    kind = "simulator"


class EmptyAnswer(SimulatorError):
    """What it gave holds no text."""


class WorldTimeout(EpisodeError):
    """The world took longer for an answer than it may."""

    kind = "timeout"


class GeneratorError(EpisodeError):
    """What samples for the agent gave no answer to some prompts of a call. `answers` has the
    completions of each prompt, None where there are none."""

    kind = "generator"

    def __init__(self, line: str, answers: list[Any]) -> None:
        super().__init__(line)
        self.answers = answers


class LostActor(EpisodeError):
    """The process that played is gone, or does not answer."""

    kind = "actor"


FAILURE_KINDS = tuple(
    error.kind
    for error in (
        EpisodeError, ContractError, SimulatorError, WorldTimeout, GeneratorError, LostActor,
    )
)  # fmt: skip


def require_at_least(least: float, **values: float) -> None:
    """Raise UserError for the first value below `least`, under its name."""
    for name, value in values.items():
        if not value >= least:
            raise UserError(f"{name} is {value}; give at least {least}")


def require_at_most(most: float, **values: float) -> None:
    """Raise UserError for the first value above `most`, under its name."""
    for name, value in values.items():
        if not value <= most:
            raise UserError(f"{name} is {value}; give at most {most}")


def require_above(limit: float, **values: float) -> None:
    """Raise UserError for the first value that is not above `limit`, under its name."""
    for name, value in values.items():
        if not value > limit:
            raise UserError(f"{name} is {value}; give more than {limit}")


def require_fraction(**values: float) -> None:
    """Raise UserError for the first value outside of 0 to 1, under its name."""
    require_at_least(0, **values)
    for name, value in values.items():
        if value > 1:
            raise UserError(f"{name} is {value}: a share is at most 1")
