"""The users: what the scripted customers say and never say, models that fail, and people."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs.tau.env import TauBench
from agentrl_cli.envs.tau.instruction import parse_instruction
from agentrl_cli.envs.tau.mini_user import MiniUser
from agentrl_cli.envs.tau.retail_user import RetailUser
from agentrl_cli.envs.tau.users import STOP, HumanUser, LLMUser, agrees
from tests.builders.tau import INSTRUCTION, services, tau_env

__all__ = ["services"]
SWAP = (
    "Your name is Ada Berg and your email is ada.berg@example.org. You are calm, kind. "
    "For #W2, exchange Rain Coat {'color': 'red', 'size': 'L'} to {'size': 'M'}; Mug {'color': "
    "'red'} to {}; via gift_card_2. For #W1, change payment to credit_card_1. For #W1, change "
    "address to {'order_id': '#W1', 'address1': '5 Oak Road', 'city': 'Bergen'} (same as #W2). "
)
ASK = "Do you confirm (yes/no)?"


def user(text: str = INSTRUCTION, seed: int = 0) -> RetailUser:
    return RetailUser.of(text, seed, ["Mug", "Rain Coat", "Lamp"])


def test_an_instruction_is_read_clause_by_clause():
    found = parse_instruction(SWAP)
    assert (found.name, found.zip, found.email) == ("Ada Berg", "", "ada.berg@example.org")
    assert [wish.kind for wish in found.requests] == ["exchange", "payment", "address"]
    coat, mug = found.requests[0].items
    assert (coat.name, coat.wanted, mug.wanted) == ("Rain Coat", {"size": "M"}, {})
    assert found.requests[2].address["city"] == "Bergen"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You are Ada. Return it all.",
        INSTRUCTION + "Also sing. ",
        INSTRUCTION.split("Return")[0],
        INSTRUCTION + "For #W1, change address to {a}. ",
        INSTRUCTION + "For #W1, change address to {'a'}. ",
        INSTRUCTION + "For #W1, change address to {[]: 1}. ",
    ],
)
def test_other_instructions_are_refused(text: str):
    with pytest.raises(UserError, match=r"env\.user=llm"):
        parse_instruction(text)


def test_identity_is_told_only_when_asked():
    customer = user()
    heard = [customer.start().text, customer.reply("Which order is it?").text]
    assert all("0150" not in text and "Ada" not in text for text in heard)
    assert all("#W2" in text for text in heard)
    told = customer.reply("What is your email, please?").text
    assert "Ada Berg" in told and "0150" in told and "@" not in told


@pytest.mark.parametrize(
    "said",
    [
        "Hello! How may I help you today?", "What would you like me to do?", "",
        "Your name has been verified, thank you.", "Please confirm the order id and the items.",
        "Your order was delivered. Which items do you mean?", "How should I refund you?",
        "Could you confirm which payment method you prefer?",
    ],
)  # fmt: skip
def test_open_questions_are_answered_with_the_wish_and_nothing_is_agreed_to(said: str):
    customer = user()
    first = customer.start().text
    assert customer.reply(said).text in first and not customer.confirmed
    assert customer.request.order == "#W2"


def test_wishes_come_one_by_one_until_all_are_done():
    customer = user()
    assert "#W1" not in customer.start().text
    proposal = f"I will return the Mug of #W2, refunded to credit_card_1. {ASK}"
    assert customer.reply(proposal).text.startswith("Yes")
    second = customer.reply("It is done. Anything else?").text
    assert "#W1" in second and "no longer needed" in second
    assert customer.reply(f"I cancel #W1. {ASK}").text.startswith("Yes")
    assert customer.reply("That has been done.").text == STOP


@pytest.mark.parametrize(
    "proposal, answer",
    [
        ("I will return the Mug of #W2 to credit_card_1.", "Yes"),
        ("I will return the Mug of #W2 to gift_card_2.", "No, that is not the payment method"),
        ("I will return the Mug of #W1 to credit_card_1.", "No, that is not the order"),
        ("I will cancel #W2.", "No, that is not what I asked for"),
        ("I will return the Mug and the Lamp of #W2.", "No, I did not ask for that item"),
        ("Shall I go on?", "Yes"),
    ],
)
def test_what_is_not_wanted_is_corrected(proposal: str, answer: str):
    customer = user()
    customer.start()
    said = customer.reply(f"{proposal} {ASK}").text
    assert said.startswith(answer)
    assert ("#W2" in said) == answer.startswith("No")


@pytest.mark.parametrize(
    "proposal, answer",
    [
        ("I exchange the Rain Coat for size M and the Mug of #W2", "Yes"),
        ("I exchange the Rain Coat for size S and the Mug of #W2", "No, those are not the options"),
        ("I exchange the Rain Coat of #W2", "No, you left an item out"),
    ],
)
def test_options_and_items_must_be_right(proposal: str, answer: str):
    customer = user(SWAP)
    customer.start()
    assert customer.reply(f"{proposal}. {ASK}").text.startswith(answer)


def test_an_address_must_be_the_right_one():
    customer = user(SWAP)
    for done in ("done", "done"):
        customer.reply(f"It is {done}.")
    assert customer.reply(f"Ship #W1 to 9 Elm Road? {ASK}").text.startswith("No, that is not the a")
    assert customer.reply(f"Ship #W1 to 5 Oak Road? {ASK}").text.startswith("Yes")


def test_the_same_seed_says_the_same_and_seeds_differ():
    def lines(seed: int) -> list[str]:
        customer = user(seed=seed)
        return [customer.start().text, customer.reply(f"Return the Mug of #W2? {ASK}").text]

    assert lines(3) == lines(3)
    assert len({tuple(lines(seed)) for seed in range(8)}) > 1


def test_the_small_shops_customer_is_reactive():
    wishes = [
        {"kind": "return", "item": "lamp", "more": ["hat"]},
        {"kind": "status", "item": "bed", "more": []},
    ]
    customer = MiniUser({"zip": "47", "requests": wishes}, 0)
    assert "lamp" in customer.start().text and "hat" not in customer.reply("Hm?").text
    assert customer.reply("What is your zip?").text == "It is 47."
    assert customer.reply("Return lamp, bed of 31: yes or no?").text.startswith("No.")
    assert customer.reply("Return lamp of 31: yes or no?").text == "Yes."
    assert customer.reply("Is there more?").text == "The hat too."
    assert customer.reply("Return lamp of 31: yes or no?").text.startswith("No.")
    assert customer.reply("Cancel 31: yes or no?").text.startswith("No.")
    assert customer.reply("It is finished.").text == "What is the status of my bed?"
    for act in ("Cancel 63", "Return bed of 63"):
        assert customer.reply(f"{act}: yes or no?").text.startswith("No.")
    assert customer.reply("It is pending.").text == STOP


class Model:
    """A chat that says its lines and notes what it was asked."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.seen, self.seeds = list(lines), [], []

    def __call__(self, messages: list[Message], seed: int) -> str:
        self.seen, self.seeds = list(messages), [*self.seeds, seed]
        line = self.lines.pop(0)
        if line == "break":
            raise OSError("no answer")
        return line


def test_a_model_plays_the_user_by_its_instruction():
    model = Model("Hi, I want a refund.", "#W2, please.", STOP)
    customer = LLMUser("You want a refund for #W2.", model, 5)
    assert customer.start().text == "Hi, I want a refund."
    assert "refund for #W2" in model.seen[0].content and STOP in model.seen[0].content
    assert [m.role for m in model.seen[1:]] == ["user"]
    assert customer.reply("Which order?").fault == "" and customer.reply("Done.").stops
    assert len(set(model.seeds)) == 3


def test_a_no_is_no_consent():
    assert agrees("Yes, please.") and agrees("Sure, go ahead.") and not agrees("Hm, who are you?")
    assert not agrees("No, that is not correct.") and not agrees("Don't proceed.")


@pytest.mark.parametrize(
    "line, fault", [("It is #W9.", "invented"), (f"Bye. {STOP}", "broke_off"), ("Hi.", "")]
)
def test_a_models_faults_are_told_apart(line: str, fault: str):
    customer = LLMUser("You want a refund for #W2.", Model(line), 5)
    assert customer.start().fault == fault


@pytest.mark.parametrize("line", ["", "break"])
def test_nobody_wins_or_loses_where_the_model_that_plays_the_user_does_not_answer(line: str):
    env = TauBench(
        domain="mini", data=None, user="llm", actions="call", turns=16, holdout=0,
        llm=Model("Hi.", line),
    )  # fmt: skip
    env.reset(env.tasks("train")[0], 0)
    with pytest.raises(SimulatorError, match="the user's model"):
        env.step('respond("How can I help?")')
    env.llm = Model(line)
    with pytest.raises(SimulatorError, match="the user's model"):
        env.reset(env.tasks("train")[0], 0)


def test_a_model_that_plays_the_user_must_be_named(services: Path):
    env = tau_env("retail", services)
    with pytest.raises(UserError, match=r"env\.user=llm needs a model"):
        tau_env("retail", services, user="llm").reset(env.tasks("train")[0], 0)


def test_a_person_is_the_user(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.StringIO("I want my money.\n"))
    person = HumanUser("You want a refund.")
    assert person.start().text == "I want my money." and person.reply("Why?").text == STOP
    shown = capsys.readouterr()
    assert "You want a refund." in shown.err and "Why?" in shown.err and shown.out == ""


def test_pass_hat_k_and_blame(services: Path):
    from agentrl_cli.core.statistics import pass_hat_k

    assert pass_hat_k([True, True, False, False], 2) == pytest.approx(1 / 6)
    assert [pass_hat_k([True, True, True], k) for k in (1, 3)] == [1.0, 1.0]
    with pytest.raises(ValueError, match="needs at least"):
        pass_hat_k([True], 2)
    env = tau_env("retail", services)
    task, nothing = env.tasks("train")[0], tau_env("retail", services).tasks("test")[0]
    episodes = [
        Episode(f"{i}", one, "g", i, [Turn([], "", [], [], [], info=info)], stop=stop)
        for i, (one, info, stop) in enumerate([
            (task, {"success": True, "tool": "think"}, "done"),
            (task, {"success": False, "tool": "respond"}, "done"),
            (nothing, {"success": False, "fault": "broke_off"}, "done"),
            (nothing, {}, "error"),
        ])
    ]  # fmt: skip
    episodes[3].error_kind = "crash"
    found = env.summarise(episodes)
    assert [found[f"failed_by_{who}"] for who in ("agent", "user", "environment")] == [0.25] * 3
    assert (found["pass_hat_1"], found["pass_hat_2"]) == (0.25, 0.0)
    assert (found["do_nothing"], found["tool_calls"]) == (0.0, 0.25)
    episodes[3].error_kind = "simulator"
    assert env.summarise(episodes)["failed_by_user"] == 0.5
    assert "pass_hat_3" not in found and env.summarise([]) == {}
