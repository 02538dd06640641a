"""The two errors that agentrl raises on purpose; everything else is a bug and may crash."""


class UserError(Exception):
    """A mistake the user can mend: one sentence with the value and the remedy; exit code 2."""


class EpisodeError(Exception):
    """An episode broke (its environment or a simulator failed): recorded, not raised further."""


def require_at_least(least: float, **values: float) -> None:
    """Raise UserError for the first value below `least`, under its name."""
    for name, value in values.items():
        if not value >= least:
            raise UserError(f"{name} is {value}; give at least {least}")


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
