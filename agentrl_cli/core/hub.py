"""Access to the Hugging Face hub without long retries."""

from __future__ import annotations

import os
import sys
from functools import cache
from threading import Thread

from agentrl_cli.core.terminal import echo

HUB_SECONDS = 4.0  # to wait for any answer of the hub


@cache
def prepare_hub() -> None:
    """Let the libraries of Hugging Face use only their cache if the hub gives no answer. They would
    retry for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or hub_answers():
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    if datasets := sys.modules.get("datasets"):
        datasets.config.HF_HUB_OFFLINE = True
    echo(f"no answer from {constants.ENDPOINT}, so only cached files are used", err=True)


def hub_answers() -> bool:
    """Return whether the hub gives any answer in time. With HF_HUB_OFFLINE it gives none.

    The thread also limits a slow resolver."""
    from huggingface_hub import constants, get_session

    answers: list[int] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS).status_code)
        except Exception:  # of the network, a proxy or a certificate
            pass

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answers)
