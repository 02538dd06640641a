"""Episodes keep the tokens as sampled, in any batch, replayed or not; failures are recorded."""

import threading
from dataclasses import replace

import pytest
import torch

from agentrl_cli.core.errors import EpisodeError, GeneratorError, RunAborted, UserError
from agentrl_cli.core.types import Episode, Message, Step
from agentrl_cli.generators.base import Sampling
from agentrl_cli.rollout.play import EpisodeStart, indistinguishable_tasks, play, probe_starts
from tests.fakes.echo import (
    CHAT,
    EchoEnv,
    ScriptedGenerator,
    TinyWeights,
    random_sampler,
    script,
)

SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)


@pytest.fixture
def sampler():
    return random_sampler()


def starts(count=4, **changes):
    tasks = EchoEnv().tasks("train")
    return [
        replace(EpisodeStart(tasks[k % 5], f"t{k}", 100 + k, f"e{k}"), **changes)
        for k in range(count)
    ]


def roll(begin, generator, sampling=SAMPLING, max_seq_len=500, **world):
    return play(begin, lambda: EchoEnv(**world), CHAT, generator, sampling, max_seq_len=max_seq_len)


def strip(episode: Episode) -> Episode:
    """What must not depend on the batch: everything but time and the last bits of log-probs."""
    turns = [replace(t, logprobs=[]) for t in episode.turns]
    return replace(episode, turns=turns, seconds=0.0, env_seconds=0.0)


def test_episode_equals_the_rendered_dialogue():
    (episode,) = roll(starts(1), script(lambda prompt: "Hello."))
    whole = [Message("system", "Say something.")]
    for i, turn in enumerate(episode.turns):
        whole += turn.observation[-1:] if i else turn.observation[1:]
        assert episode.state_ids(i) == CHAT.start(whole)
        whole.append(Message("assistant", turn.action))
    assert [turn.action for turn in episode.turns] == ["Hello."] * 3
    assert episode.stop == "done" and episode.reward == 1.0 and not episode.success
    assert [m.content for m in episode.final_observation] == [f"Heard 6, mood {100 % 7}."]


def test_tokens_and_logprobs_are_those_that_were_sampled(sampler):
    for episode in roll(starts(), sampler):
        for i, turn in enumerate(episode.turns):
            ids = episode.state_ids(i) + turn.action_ids
            with torch.no_grad():
                logits = TinyWeights.model(input_ids=torch.tensor([ids])).logits[0].float()
            at = range(len(ids) - len(turn.action_ids), len(ids))
            expected = [logits[k - 1].log_softmax(-1)[ids[k]].item() for k in at]
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
            assert turn.action == CHAT.decode(turn.action_ids)


def test_next_observation_closes_a_cut_action(sampler):
    cut = [e for e in roll(starts(8), sampler) if e.turns[0].finish_reason == "length"]
    assert cut
    for episode in cut:
        assert len(episode.turns[0].action_ids) == SAMPLING.max_tokens
        assert episode.turns[1].observation_ids[0] == CHAT.end_of_turn


def test_an_episode_does_not_depend_on_its_batch(sampler):
    together = roll(starts(6), sampler)
    alone = [roll([start], sampler)[0] for start in starts(6)]
    assert [strip(e) for e in together] == [strip(e) for e in alone]


def test_sampling_depends_on_seed_and_turn(sampler):
    one = EpisodeStart(EchoEnv().tasks("train")[0], "g", 7, "first")
    first, second = roll([one, replace(one, id="second", group="h")], sampler)
    assert [t.action_ids for t in first.turns] == [t.action_ids for t in second.turns]
    (third,) = roll([replace(one, seed=14)], sampler)
    assert third.turns[0].observation == first.turns[0].observation
    assert [t.action_ids for t in first.turns] != [t.action_ids for t in third.turns]


def test_a_forced_episode_replays_bit_for_bit(sampler):
    for episode, start in zip(roll(starts(), sampler), starts(), strict=True):
        (again,) = roll([replace(start, replayed=episode.turns)], script(lambda prompt: "never"))
        for turn in again.turns:
            assert turn.info.pop("forced") is True
        assert [t.logprobs for t in again.turns] == [t.logprobs for t in episode.turns]
        assert strip(again) == strip(episode)


def test_different_observation_ends_replay_as_diverged(sampler):
    (episode,) = roll(starts(1), sampler)
    begin = replace(starts(1)[0], replayed=episode.turns, world_seed=1)
    (again,) = roll([begin], sampler)
    assert again.stop == "diverged" and again.turns == []


def test_probe_keeps_environment_and_varies_policy(sampler):
    (episode,) = roll(starts(1), sampler)
    action = CHAT.encode_action("Other.")
    probes = roll(probe_starts(episode, 1, "Other.", action, [1, 2, 3]), sampler)
    for probe in probes:
        assert [t.action for t in probe.turns[:2]] == [episode.turns[0].action, "Other."]
        assert probe.seed == episode.seed and probe.group == "e0-p01"
        assert probe.turns[2].observation[0].content == f"Heard 6, mood {100 % 7}."
        assert probe.state_ids(1) == episode.state_ids(1)
    assert len({tuple(probe.turns[2].action_ids) for probe in probes}) > 1
    assert len({probe.id for probe in probes}) == 3
    (nested,) = roll(probe_starts(probes[0], 2, "More.", action, [4]), sampler)
    assert nested.stop == "done" and nested.seed == episode.seed


def test_too_long_episode_stops_as_context():
    (free,) = roll(starts(1), script(lambda prompt: "Hello."))
    room = len(free.state_ids(1)) + SAMPLING.max_tokens
    (fits,) = roll(starts(1), script(lambda prompt: "Hello."), max_seq_len=room)
    assert (fits.stop, len(fits.turns)) == ("context", 2)
    assert fits.final_observation == free.turns[2].observation
    (short,) = roll(starts(1), script(lambda prompt: "Hello."), max_seq_len=room - 1)
    assert (short.stop, len(short.turns)) == ("context", 1)
    (none,) = roll(starts(1), script(lambda prompt: "Hello."), max_seq_len=10)
    assert (none.stop, none.turns, none.reward) == ("context", [], 0)


@pytest.mark.parametrize(("at", "turns"), [(0, 0), (2, 2)])
@pytest.mark.parametrize("error", [EpisodeError, KeyError, ZeroDivisionError])
def test_a_failing_world_is_recorded_on_its_episode(at, turns, error):
    episodes = roll(starts(2), script(lambda prompt: "Hello."), fails_at=at, error=error)
    for episode in episodes:
        assert episode.stop == "error" and len(episode.turns) == turns
        assert episode.error is not None and f"broken at {at}" in episode.error
        assert error.__name__ in episode.error


def test_the_users_mistake_is_not_an_episodes_error():
    with pytest.raises(UserError):
        roll(starts(1), script(lambda prompt: "Hello."), fails_at=1, error=UserError)


def test_error_on_close_fails_a_won_episode():
    class Sticky(EchoEnv):
        def close(self) -> None:
            raise OSError("stuck")

    won, broken = (
        play(starts(1), world, CHAT, script(lambda prompt: "stop"), SAMPLING, max_seq_len=500)[0]
        for world in (EchoEnv, Sticky)
    )
    assert won.turns[-1].info == broken.turns[-1].info == {"success": True}
    assert (won.success, broken.success) == (True, False)
    assert (broken.stop, broken.error) == ("error", "on closing OSError: stuck")


def test_compared_environments_are_closed():
    (episode,) = roll(starts(1), script(lambda prompt: "Hello."))
    tasks, closed = EchoEnv().tasks("train"), list[str]()
    alike = indistinguishable_tasks(episode, 2, tasks, lambda: EchoEnv(closed=closed))
    assert [task.id for task in alike] == ["train-0"] and len(closed) == 4


def test_cut_action_keeps_sampled_tokens():
    class Thinker(EchoEnv):
        @property
        def turn_delimiter(self) -> str:
            return ";"

        def step(self, action: str) -> Step:
            if action.endswith(self.turn_delimiter):
                return Step([], 0.0, False, False)
            return replace(super().step(action), done=True)

    text, sampling = "One; two; three.", replace(SAMPLING, max_tokens=99)
    generator = script(lambda prompt: text)
    (episode,) = play(starts(1), Thinker, CHAT, generator, sampling, max_seq_len=500)
    assert [turn.action for turn in episode.turns] == ["One;", " two;", " three."]
    whole = [i for turn in episode.turns for i in turn.action_ids]
    assert whole == CHAT.encode_action(text)
    assert [turn.observation_ids for turn in episode.turns[1:]] == [[], []]
    assert [turn.finish_reason for turn in episode.turns] == ["stop"] * 3
    last = episode.turns[2].action_ids
    assert episode.state_ids(2) == episode.turns[0].observation_ids + whole[: -len(last)]


def test_text_after_an_answered_part_is_dropped():
    class Liner(EchoEnv):
        @property
        def turn_delimiter(self) -> str:
            return ";"

    generator = script(lambda prompt: "One; two; stop.")
    sampling = replace(SAMPLING, max_tokens=99)
    (episode,) = play(starts(1), Liner, CHAT, generator, sampling, max_seq_len=500)
    assert [turn.action for turn in episode.turns] == ["One;", "One;", "One;"]
    for turn in episode.turns[1:]:
        assert turn.observation[0].content.startswith("Heard 4") and turn.observation_ids


@pytest.mark.parametrize("where", ["step", "reset"])
def test_hanging_environment_is_abandoned(where):
    freed = threading.Event()

    class Hanging(EchoEnv):
        def reset(self, task, seed):
            if where == "reset" and task.data["i"] == 1:
                freed.wait()
            return super().reset(task, seed)

        def step(self, action: str) -> Step:
            if where == "step" and self.task.data["i"] == 1:
                freed.wait()
            return super().step(action)

    closed, generator = [], script(lambda prompt: "Hello.")
    episodes = play(
        starts(3), lambda: Hanging(closed=closed), CHAT, generator, SAMPLING, max_seq_len=500,
        env_timeout=0.1,
    )  # fmt: skip
    freed.set()
    assert [episode.stop for episode in episodes] == ["done", "error", "done"]
    assert closed == ["train-0", "train-2"]
    hung = episodes[1]
    assert hung.error_kind == "timeout" and hung.reward == 0
    assert hung.error is not None and "EnvTimeout: no answer within 0.1 s (" in hung.error


def lost(generator: ScriptedGenerator, *, at: int, every: int):
    """The generator, which from call number `at` on leaves each `every`th prompt unanswered."""
    calls, sample = [], generator.generate

    def generate(prompts, seeds, sampling, model="policy"):
        calls.append(len(prompts))
        answers = sample(prompts, seeds, sampling, model)
        if len(calls) <= at:
            return answers
        left = [None if i % every == 0 else answer for i, answer in enumerate(answers)]
        raise GeneratorError("the server is gone", left)

    generator.generate = generate
    return generator


def test_unanswered_episode_fails_alone():
    episodes = roll(starts(4), lost(script(lambda prompt: "Hello."), at=1, every=4))
    assert [episode.stop for episode in episodes] == ["error", "error", "done", "done"]
    assert [len(episode.turns) for episode in episodes] == [1, 2, 3, 3]
    first = episodes[0]
    assert (first.error, first.error_kind) == ("GeneratorError: the server is gone", "generator")
    assert first.reward == 0.0


def test_lost_generator_stops_play():
    generator = lost(script(lambda prompt: "Hello."), at=1, every=1)
    with pytest.raises(RunAborted, match=r"2 of 4 .* the server is gone; fix the generator"):
        play(starts(4), EchoEnv, CHAT, generator, SAMPLING, max_seq_len=500, max_failure_rate=0.4)
