"""The two errors that agentrl raises on purpose; everything else is a bug and may crash."""


class UserError(Exception):
    """A mistake the user can mend: one sentence with the value and the remedy; exit code 2."""


class EpisodeError(Exception):
    """An episode broke (its environment or a simulator failed): recorded, not raised further."""
