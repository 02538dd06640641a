"""Forecasts of the frozen initial model in GRPO and RFT: numbers by hand, and nothing when off."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from agentrl_cli.algos.base import Algorithm, Phase
from agentrl_cli.algos.frozen_forecast import add_gains
from agentrl_cli.algos.grpo import GRPO
from agentrl_cli.algos.samples import all_turns
from agentrl_cli.algos.settings import FrozenForecastConfig, GRPOForecastConfig
from agentrl_cli.algos.sft import SFT
from agentrl_cli.cli.train import start
from agentrl_cli.config.compose import check, compose
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.models.specs import OptimizerSpec
from agentrl_cli.rollout.replay_buffer import ReplayBuffer
from agentrl_cli.runs.run import Run
from tests.builders.critics import bound
from tests.builders.nlac import CHAT, Troupe, episode, messages, troupe

FORECASTS = {
    "forecast": "Forecast it.", "num_forecasts": 4, "role_tokens": 40, "role_temperature": 1.0,
}  # fmt: skip
ADAM = OptimizerSpec(lr=1e-2)
SCORES = {"Is it big?": 0.5, "Is it red?": 0.25, "Is it a cat?": 1.0, "Is it a dog?": 0.0}


def critic() -> Troupe:
    """A forecaster that names success in that share of its four forecasts of an action."""
    left: dict[str, int] = {}

    def forecast(prompt: str, draw: object) -> str:
        action = messages(prompt)[-2].removesuffix("<|im_end|>\n")
        left[prompt] = left.get(prompt, -1) + 1
        return "Success." if left[prompt] % 4 < 4 * SCORES[action] else "Failure."

    return troupe(forecast=forecast)


def grpo(coef: float | None, **changes) -> GRPO:
    settings = None if coef is None else GRPOForecastConfig(**FORECASTS, coef=coef)
    usual = {"group_size": 2, "normalise_advantages": True, "clip_eps": 0.2, "kl_coef": 0.0}
    own = {"epochs": 1, "minibatch_tokens": 0, "optimizer": ADAM}
    return GRPO(**{**usual, **own, **changes}, frozen_forecast=settings)


def rft(forecast: bool) -> SFT:
    settings = FrozenForecastConfig(**FORECASTS) if forecast else None
    return SFT(
        only_success=True, epochs=1, minibatch_tokens=0, optimizer=ADAM, frozen_forecast=settings
    )


def group() -> list[Episode]:
    """A win and a loss of one task, which begin in the same state."""
    won = episode("g", ["Is it big?", "Is it red?", "Is it a cat?"], success=True)
    lost = episode("g", ["Is it a cat?", "Is it a dog?"], success=False)
    return [won, lost]


def phase_of(algo: Algorithm, folder: Path, speaker: Troupe, episodes: list[Episode]) -> Phase:
    bound(algo, folder, speaker)
    (phase,) = algo.update(episodes, ReplayBuffer(None, 1))
    return phase


def test_advantage_is_return_plus_gain(model_folder: Path):
    episodes, speaker = group(), critic()
    phase = phase_of(grpo(2.0), model_folder, speaker, episodes)
    # V of the first state: (1/2 + 1) / 2; group advantages: 1 and -1
    gains = [[0.5 - 0.75, 0.25 - 0.5, 1.0 - 0.25], [1.0 - 0.75, 0.0 - 1.0]]
    for played, row, group_advantage in zip(episodes, gains, (1.0, -1.0), strict=True):
        found = [turn.info["advantage"] for turn in played.turns]
        assert found == pytest.approx([group_advantage + 2 * gain for gain in row])
    per_token = phase.samples[0].per_token["advantage"]
    assert per_token[-len(episodes[0].turns[2].action_ids) :] == pytest.approx(
        [2.5] * len(episodes[0].turns[2].action_ids)
    )
    assert phase.metrics["frozen_forecast/success"] == pytest.approx((0.5 + 0.25 + 1 + 1 + 0) / 5)
    assert {(call.role, call.model) for call in speaker.calls} == {("forecast", "reference")}


def test_group_of_equal_rewards_learns_from_gains(model_folder: Path):
    won = group()[0]
    phase = phase_of(grpo(1.0), model_folder, critic(), [won, deepcopy(won)])
    assert phase.metrics["reward/frac_zero_std"] == 1 and len(phase.samples) == 2
    assert [turn.info["advantage"] for turn in won.turns] == [0.0, -0.25, 0.75]


def test_rft_trains_turns_that_do_not_worsen_forecasts(model_folder: Path):
    won, lost = group()
    phase = phase_of(rft(True), model_folder, critic(), [won, lost])
    (sample,) = phase.samples
    trained = [i for i, m in zip(sample.ids, sample.mask, strict=True) if m]
    # V of the first state is (1/2 + 1) / 2, a mean over both episodes, so "Is it big?" is worse
    assert CHAT.text_of(trained) == "Is it a cat?<|im_end|>"


@pytest.mark.parametrize(("off", "neutral"), [(grpo(None), grpo(0.0)), (rft(False), None)])
def test_off_reads_no_forecast(model_folder: Path, off: Algorithm, neutral: Algorithm | None):
    episodes, silent = group(), critic()
    phase = phase_of(off, model_folder, silent, episodes)
    assert silent.calls == [] and list(off.models()) == ["policy"]
    assert off.extra_prompt_tokens() == 0
    assert not any("forecast_gain" in turn.info for e in episodes for turn in e.turns)
    if neutral:
        assert phase_of(neutral, model_folder, critic(), group()).samples == phase.samples


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_frozen_model_writes_forecasts(kl_coef: float):
    specs = grpo(1.0, kl_coef=kl_coef).models()
    assert list(specs) == ["policy", "reference"]
    assert specs["reference"].generates and specs["reference"].kind == "frozen"


def test_unparsable_forecasts_are_refused(model_folder: Path):
    mute = troupe(forecast=["Who knows.", "Hm.", "Well. Success."])
    with pytest.raises(UserError) as error:
        phase_of(grpo(1.0), model_folder, mute, group())
    assert error.value.code == "unparsable-role"


@pytest.mark.parametrize("wrong", ["algo=nlac", "algo=grpo prompts.forecast=''"])
def test_wrong_settings_are_refused(wrong: str):
    with pytest.raises(UserError):
        check(compose([*wrong.split(), "ablation=frozen_forecast"]))


def test_preset_reads_forecasts_as_nlac():
    nlac = check(compose(["algo=nlac", "model=hf", "model.path=x"])).algo
    for algo in ("grpo", "rft"):
        chosen = [f"algo={algo}", "model=hf", "model.path=x", "ablation=frozen_forecast"]
        found = check(compose(chosen)).algo.frozen_forecast
        for key in ("forecast", "parser", "speaker", "frame"):
            assert found[key] == nlac.prompts[key]
        assert found.num_forecasts == nlac.num_forecasts
        assert found.role_tokens == nlac.advanced.role_tokens
        assert found.role_temperature == nlac.advanced.role_temperature


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "rft"])
def test_twentyq_trains_with_forecasts(tmp_path: Path, algo: str):
    start([
        "recipe=twentyq", f"algo={algo}", "ablation=frozen_forecast", "steps=2", f"runs={tmp_path}",
        "name=it", "rollout.episodes_per_step=16", "eval.tasks=2", "eval.episodes_per_task=1",
    ])  # fmt: skip
    updates = [row for row in Run(tmp_path / "it").metrics() if "reward/mean" in row]
    assert len(updates) == 2
    for row in updates:
        assert row["frozen_forecast/valid"] > 0.9 and 0.2 < row["frozen_forecast/success"] < 0.9


def test_turn_without_a_forecast_has_no_gain():
    won, lost = group()
    turns = all_turns([won, lost])
    add_gains(turns, [1.0, None, 0.75, None, 0.25])
    assert [turn.info["forecast_gain"] for turn in won.turns] == [0.0, 0.0, -0.25]
    assert [turn.info["forecast_gain"] for turn in lost.turns] == [0.0, -0.75]
