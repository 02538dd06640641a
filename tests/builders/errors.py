"""Expected errors, by their code."""

from __future__ import annotations

import pytest

from agentrl_cli.core.errors import UserError


def user_error(code: str, *values: object) -> pytest.RaisesExc[UserError]:
    """Expect a UserError with this code and a message that contains these values."""

    def fits(error: UserError) -> bool:
        return error.code == code and all(str(value) in str(error) for value in values)

    return pytest.raises(UserError, check=fits)
