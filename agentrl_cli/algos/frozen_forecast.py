"""Forecasts of the frozen initial model for GRPO and RFT (`ablation=frozen_forecast`).

NLAC starts with a critic that may already predict outcomes well. This control gives other
algorithms the same information. F(s, a) is the share of forecasts, written by a frozen copy of the
initial model, that predict success. The gain of a turn estimates its advantage under the initial
policy (Setlur et al. 2024, arXiv 2410.08146, section 3):

    gain_t = F(s_t, a_t) - F(s_{t-1}, a_{t-1})

because the forecast after one turn is also an estimate of V of the next state. For the first turn,
V(s_0) is the mean F of all first turns in the same state.
"""

from __future__ import annotations

from collections import defaultdict

from agentrl_cli.algos.base import Context
from agentrl_cli.algos.nlac.roles import Forecaster, success_share
from agentrl_cli.algos.samples import TurnRef, all_turns
from agentrl_cli.algos.settings import FrozenForecastConfig
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.statistics import mean
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import ModelSpec

REFERENCE = {"reference": ModelSpec(kind="frozen", generates=True)}
MIN_PARSE_RATE = 0.5  # of forecasts, at the first update


def add_forecast_gains(
    context: Context, settings: FrozenForecastConfig, episodes: list[Episode]
) -> dict[str, float]:
    """Write the gain of every turn into `info["forecast_gain"]` and return metrics.

    Raises UserError at the first update if most forecasts cannot be parsed.
    """
    turns = all_turns(episodes)
    forecaster = Forecaster(context, settings, settings, "reference")
    forecaster.begin_stream("frozen_forecast", context.step)
    actions = [turn.action_ids for turn in turns]
    texts = forecaster.forecast(turns, actions, settings.num_forecasts)
    valid = sum(map(len, texts)) / max(1, settings.num_forecasts * len(turns))
    is_random = context.models.config.has_random_weights  # as in tests
    if turns and context.step == 0 and valid < MIN_PARSE_RATE and not is_random:
        line = f"only {valid:.0%} of the forecasts of the initial model name Success or Failure"
        remedy = "change prompts.forecast, or leave algo.frozen_forecast out"
        raise UserError(f"{line}; {remedy}", code="unparsable-role")
    scores = [success_share(row, forecaster.parser) if row else None for row in texts]
    add_gains(turns, scores)
    known = [score for score in scores if score is not None]
    return {"frozen_forecast/valid": valid, "frozen_forecast/success": mean(known)}


def add_gains(turns: list[TurnRef], scores: list[float | None]) -> None:
    """Write the gain of every turn by its score. The turns of an episode are in order. A turn
    without a score has no gain, and the next one counts from the last score."""
    first: dict[tuple[int, ...], list[float]] = defaultdict(list)  # scores by first state
    for turn, score in zip(turns, scores, strict=True):
        if turn.turn == 0 and score is not None:
            first[tuple(turn.state_ids)].append(score)
    before: float | None = None
    for turn, score in zip(turns, scores, strict=True):
        if turn.turn == 0:
            before = mean(known) if (known := first[tuple(turn.state_ids)]) else score
        gain = 0.0 if score is None or before is None else score - before
        turn.episode.turns[turn.turn].info["forecast_gain"] = gain
        before = before if score is None else score


def forecast_tokens(context: Context, settings: FrozenForecastConfig | None) -> int:
    """Return the maximum number of tokens that a forecast and its instruction add to an episode,
    0 without settings."""
    if settings is None:
        return 0
    forecaster = Forecaster(context, settings, settings, "reference")
    return len(forecaster.prompt_after([], [], settings.forecast)) + settings.role_tokens
