"""Episodes keep the tokens as sampled, in any batch, replayed or not; failures are recorded."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from helpers import tiny_model, tiny_tokenizer

from agentrl_cli.chat import Chat
from agentrl_cli.collect import PlayCollector, refuse_failures
from agentrl_cli.envs.base import Env
from agentrl_cli.errors import EpisodeError, UserError
from agentrl_cli.generators.base import Sampling
from agentrl_cli.generators.hf import HFGenerator
from agentrl_cli.generators.scripted import ScriptedGenerator
from agentrl_cli.rollout import Start, play, probe_starts
from agentrl_cli.types import Episode, Message, Step, Task, Turn

TOKENIZER = tiny_tokenizer()
CHAT = Chat(TOKENIZER)
SAMPLING = Sampling(max_tokens=8, temperature=1.0, stop_ids=CHAT.stop_ids)


@dataclass(kw_only=True)
class Echo(Env):
    """Says how many letters it heard and its mood, which the seed decides; ends after `turns`."""

    turns: int = 3
    limit: int = 9
    fails_at: int = -1
    error: type[Exception] = EpisodeError
    closed: list[str] = field(default_factory=list)

    def system(self) -> str:
        return "Say something."

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", split, {"i": i}) for i in range(5)]

    def reset(self, task: Task, seed: int) -> list[Message]:
        self.played, self.task, self.mood = 0, task, seed % 7
        self._fail(0)
        return [Message("user", f"Task {task.data['i']}, mood {self.mood}.")]

    def step(self, action: str) -> Step:
        self.played += 1
        self._fail(self.played)
        done = self.played == self.turns or "stop" in action
        info = {"success": done and "stop" in action}
        heard = [Message("user", f"Heard {len(action)}, mood {self.mood}.")]
        return Step(heard, float(done), done, self.played == self.limit, info)

    def close(self) -> None:
        self.closed.append(self.task.id)

    def _fail(self, at: int) -> None:
        if at == self.fails_at:
            raise self.error(f"broken at {at}")


class Weights:
    device = torch.device("cpu")
    model = tiny_model(TOKENIZER)

    def module(self, name):
        return self.model


@pytest.fixture
def sampler():
    torch.set_num_threads(1)
    return HFGenerator(Weights(), max_batch=64, cache_tokens=10_000)


def script(answer):
    return ScriptedGenerator(answer, read=CHAT.read, write=CHAT.encode_action)


def starts(count=4, **changes):
    tasks = Echo().tasks("train")
    return [
        replace(Start(tasks[k % 5], f"t{k}", 100 + k, f"e{k}"), **changes) for k in range(count)
    ]


def roll(begin, generator, sampling=SAMPLING, max_context=500, **world):
    return play(begin, lambda: Echo(**world), CHAT, generator, sampling, max_context=max_context)


def strip(episode: Episode) -> Episode:
    """What must not depend on the batch: everything but time and the last bits of log-probs."""
    return replace(episode, turns=[replace(t, logprobs=[]) for t in episode.turns], seconds=0.0)


def test_an_episode_is_the_dialogue_the_template_would_render():
    (episode,) = roll(starts(1), script(lambda prompt: "Hello."))
    whole = [Message("system", "Say something.")]
    for i, turn in enumerate(episode.turns):
        whole += turn.observation[-1:] if i else turn.observation[1:]
        assert episode.state_ids(i) == CHAT.start(whole)
        whole.append(Message("assistant", turn.action))
    assert [turn.action for turn in episode.turns] == ["Hello."] * 3
    assert episode.stop == "done" and episode.reward == 1.0 and not episode.success
    assert [m.content for m in episode.closing] == [f"Heard 6, mood {100 % 7}."]


def test_tokens_and_logprobs_are_those_that_were_sampled(sampler):
    for episode in roll(starts(), sampler):
        for i, turn in enumerate(episode.turns):
            ids = episode.state_ids(i) + turn.action_ids
            with torch.no_grad():
                logits = Weights.model(input_ids=torch.tensor([ids])).logits[0].float()
            at = range(len(ids) - len(turn.action_ids), len(ids))
            expected = [logits[k - 1].log_softmax(-1)[ids[k]].item() for k in at]
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
            assert turn.action == CHAT.decode(turn.action_ids)


def test_an_action_cut_by_max_tokens_is_closed_by_the_next_observation(sampler):
    cut = [e for e in roll(starts(8), sampler) if e.turns[0].finish == "length"]
    assert cut
    for episode in cut:
        assert len(episode.turns[0].action_ids) == SAMPLING.max_tokens
        assert episode.turns[1].observation_ids[0] == CHAT.closing


def test_an_episode_does_not_depend_on_its_batch(sampler):
    together = roll(starts(6), sampler)
    alone = [roll([start], sampler)[0] for start in starts(6)]
    assert [strip(e) for e in together] == [strip(e) for e in alone]


def test_all_live_episodes_of_a_turn_share_one_call():
    sizes: list[int] = []

    class Counting(ScriptedGenerator):
        def generate(self, prompts, seeds, sampling, model="policy"):
            sizes.append(len(prompts))
            return super().generate(prompts, seeds, sampling, model)

    talk = lambda prompt: "stop" if "Task 0" in prompt else "go on"  # noqa: E731
    generator = Counting(talk, read=CHAT.read, write=CHAT.encode_action)
    roll(starts(5), generator)
    assert sizes == [5, 4, 4]


def test_sampling_depends_on_the_start_seed_and_the_turn_only(sampler):
    one = Start(Echo().tasks("train")[0], "g", 7, "first")
    first, second = roll([one, replace(one, id="second", group="h")], sampler)
    assert [t.action_ids for t in first.turns] == [t.action_ids for t in second.turns]
    (third,) = roll([replace(one, seed=14)], sampler)
    assert third.turns[0].observation == first.turns[0].observation
    assert [t.action_ids for t in first.turns] != [t.action_ids for t in third.turns]


def test_a_forced_episode_replays_bit_for_bit(sampler):
    for episode, start in zip(roll(starts(), sampler), starts(), strict=True):
        (again,) = roll([replace(start, forced=episode.turns)], script(lambda prompt: "never"))
        for turn in again.turns:
            assert turn.info.pop("forced") is True
        assert [t.logprobs for t in again.turns] == [t.logprobs for t in episode.turns]
        assert strip(again) == strip(episode)


def test_a_forced_beginning_is_played_on_from_the_same_state(sampler):
    (episode,) = roll(starts(1), sampler)
    (again,) = roll([replace(starts(1)[0], forced=episode.turns[:2])], sampler)
    assert "forced" not in again.turns[2].info
    assert again.state_ids(2) == episode.state_ids(2)
    assert again.turns[2].action_ids == episode.turns[2].action_ids


def test_a_world_that_answers_differently_ends_a_replay_as_diverged(sampler):
    (episode,) = roll(starts(1), sampler)
    begin = replace(starts(1)[0], forced=episode.turns, world_seed=1)
    (again,) = roll([begin], sampler)
    assert again.stop == "diverged" and again.turns == []


def test_a_probe_keeps_the_world_and_varies_the_policy(sampler):
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


def test_an_episode_that_would_not_fit_stops_as_context_with_the_unanswered_observation():
    (free,) = roll(starts(1), script(lambda prompt: "Hello."))
    room = len(free.state_ids(1)) + SAMPLING.max_tokens
    (fits,) = roll(starts(1), script(lambda prompt: "Hello."), max_context=room)
    assert (fits.stop, len(fits.turns)) == ("context", 2)
    assert fits.closing == free.turns[2].observation
    (short,) = roll(starts(1), script(lambda prompt: "Hello."), max_context=room - 1)
    assert (short.stop, len(short.turns)) == ("context", 1)
    (none,) = roll(starts(1), script(lambda prompt: "Hello."), max_context=10)
    assert (none.stop, none.turns, none.reward) == ("context", [], 0)


def test_a_limit_of_the_world_is_truncated_not_done():
    (episode,) = roll(starts(1), script(lambda prompt: "Hello."), limit=2)
    assert episode.stop == "truncated" and not episode.turns[-1].done


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


def test_every_world_is_closed_once():
    closed: list[str] = []
    roll(starts(5), script(lambda prompt: "Hello."), closed=closed)
    assert sorted(closed) == [f"train-{i}" for i in range(5)]


def test_a_world_that_fails_on_closing_is_an_error():
    class Sticky(Echo):
        def close(self) -> None:
            raise OSError("stuck")

    (episode,) = play(
        starts(1), Sticky, CHAT, script(lambda prompt: "Hi."), SAMPLING, max_context=500
    )
    assert (episode.stop, episode.error) == ("error", "on closing OSError: stuck")


def test_an_episode_survives_json(sampler):
    for episode in roll(starts(), sampler):
        assert Episode.from_json(episode.to_json()) == episode


def collector(tasks_per_step, generator, **world):
    made = PlayCollector(
        tasks_per_step=tasks_per_step, max_tokens=8, temperature=1.0, max_context=500
    )
    made.bind(make_env=lambda: Echo(**world), chat=CHAT, generator=generator, seed=3)
    return made


def test_every_task_is_visited_before_any_is_repeated():
    generator = script(lambda prompt: "Hello.")
    for size in (1, 2, 3, 7):
        made = collector(size, generator)
        seen = [start.task.id for step in range(10) for start in made.starts(step, 1)]
        for epoch in range(len(seen) // 5):
            assert len(set(seen[5 * epoch : 5 * epoch + 5])) == 5
        assert seen[:5] != seen[5:10]


def test_a_step_is_a_function_of_seed_and_step(sampler):
    first = collector(2, sampler).collect(3, 2)
    other = collector(2, sampler)
    other.collect(0, 2)
    again = other.collect(3, 2)
    assert [replace(e, seconds=0) for e in again] == [replace(e, seconds=0) for e in first]


def test_groups_share_a_task_and_ids_and_seeds_are_unique(sampler):
    episodes = collector(7, sampler).collect(12, 3)
    assert len({e.id for e in episodes}) == len({e.seed for e in episodes}) == 21
    assert episodes[10].id == "s000012-t03-g1" and episodes[10].group == "s000012-t03"
    groups = {e.group: e.task.id for e in episodes}
    assert all(groups[e.group] == e.task.id and e.policy_version == 12 for e in episodes)


def test_a_step_in_which_more_than_a_fifth_failed_says_why():
    with pytest.raises(RuntimeError, match=r"2 of 2 episodes failed, 2 .* broken at 1"):
        collector(2, script(lambda prompt: "Hello."), fails_at=1).collect(0, 1)
    task = Echo().tasks("train")[0]
    fine = Episode("a", task, "g", 0, [])
    broken = Episode("b", task, "g", 0, [], stop="error", error="why")
    refuse_failures([fine] * 4 + [broken])
    with pytest.raises(RuntimeError, match="why"):
        refuse_failures([fine] * 3 + [broken])


def test_a_scripted_answer_is_cut_at_max_tokens():
    sampling = replace(SAMPLING, max_tokens=2, n=2)
    row = script(lambda prompt: "A long answer.").generate([[5]], [0], sampling)[0]
    assert [c.finish for c in row] == ["length"] * 2 and len(row[0].ids) == 2


def test_an_empty_observation_goes_on_in_the_same_message():
    class Thought(Echo):
        def step(self, action: str) -> Step:
            return replace(super().step(action), messages=[])

    forced = [Turn([], "Think.", [], CHAT.encode_action("Think.")[:-1], [])]
    env = Thought()
    env.reset(starts(1)[0].task, 100)
    forced[0].observation = [Message("system", env.system()), *env.reset(starts(1)[0].task, 100)]
    begin = replace(starts(1)[0], forced=forced)
    (episode,) = play(
        [begin], Thought, CHAT, script(lambda prompt: "Hi."), SAMPLING, max_context=500
    )
    assert episode.turns[1].observation_ids == []
    assert episode.state_ids(1) == episode.state_ids(0) + forced[0].action_ids
