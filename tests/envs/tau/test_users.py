"""The users: scripted customers, simulators that fail, people, and metrics of blame."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from agentrl_cli.core.errors import SimulatorError, UserError
from agentrl_cli.core.statistics import pass_hat_k
from agentrl_cli.core.types import Episode, Message, Turn
from agentrl_cli.envs.tau.mini import MiniUser
from agentrl_cli.envs.tau.users import (
    STOP,
    HumanUser,
    LLMUser,
    RetailUser,
    parse_instruction,
)
from tests.builders.tau import INSTRUCTION, services, tau_env

__all__ = ["services"]
SWAP = (
    "Your name is Ada Berg and your email is ada.berg@example.org. You are calm, kind. "
    "For #W2, exchange Rain Coat {'color': 'red', 'size': 'L'} to {'size': 'M'}; Mug {'color': "
    "'red'} to {}; via gift_card_2. For #W1, change payment to credit_card_1. For #W1, change "
    "address to {'order_id': '#W1', 'address1': '5 Oak Road', 'city': 'Bergen'} (same as #W2). "
)
ADA = "Your name is Ada Berg and your zip code is 0150. You are calm. "
RETURN = INSTRUCTION  # the Mug of #W2 to credit_card_1; then cancel #W1
CANCEL = ADA + "Cancel order #W1 because no longer needed. "
EXCHANGE = (
    ADA + "For #W2, exchange Rain Coat {'color': 'red', 'size': 'L'} to {'size': 'M'}; "
    "Mug {'color': 'red'} to {'color': 'blue'}; via credit_card_1. "
)
MODIFY = EXCHANGE.replace("exchange", "modify")
PAYMENT = ADA + "For #W1, change payment to credit_card_1. "
ADDRESS = ADA + "For #W1, change address to {'address1': '5 Oak Road', 'zip': '5003'}. "
ASK = "Do you confirm (yes/no)?"
NAME, YES, WISH, NO = "My name is Ada Berg", "Yes", "Please cancel", "No, that is not "
ACT, PAID, OPTIONS = NO + "what I asked", NO + "the payment", "No, those are not the options"
ITEM, FORGOT = "No, I did not ask for that item", "No, you left an item out"


def user(text: str = INSTRUCTION, seed: int = 0) -> RetailUser:
    return RetailUser(text, seed, ["Mug", "Rain Coat", "Lamp"])


def test_instruction_parses_clause_by_clause():
    found = parse_instruction(SWAP)
    assert (found.name, found.zip, found.email) == ("Ada Berg", "", "ada.berg@example.org")
    assert [wish.kind for wish in found.requests] == ["exchange", "payment", "address"]
    coat, mug = found.requests[0].items
    assert (coat.name, coat.wanted, mug.wanted) == ("Rain Coat", {"size": "M"}, {})
    assert found.requests[2].address["city"] == "Bergen"


@pytest.mark.parametrize(
    "text",
    [
        "", "You are Ada. Return it all.", INSTRUCTION + "Also sing. ",
        INSTRUCTION.split("Return")[0], INSTRUCTION + "For #W1, change address to {a}. ",
        INSTRUCTION + "For #W1, change address to {'a'}. ",
        INSTRUCTION + "For #W1, change address to {[]: 1}. ",
    ],
)  # fmt: skip
def test_other_instructions_are_refused(text: str):
    with pytest.raises(UserError) as error:
        parse_instruction(text)
    assert error.value.code == "unsupported-instruction"


@pytest.mark.parametrize(
    "instruction, message, answer",
    [
        # identity
        (CANCEL, "I can help you cancel order #W1. To verify your identity, could you please "
         "provide your email or your name and zip code?", NAME),
        (CANCEL, "May I have your first and last name, please?", NAME),
        (CANCEL, "Please provide:\n- your email, or\n- your name", NAME),
        (CANCEL, "Before I go on, I need to verify you. Please give me:\n1. Your order\n2. Your "
         "email", NAME),
        (CANCEL, "Could you please confirm your email for order #W1?", NAME),
        (CANCEL, "Who am I speaking with?", NAME),
        (CANCEL, "I am unable to continue until you tell me who you are.", NAME),
        (ADDRESS, f"The new address of your order: 5 Oak Road, Bergen, zip 5003, Norway. {ASK}",
         YES),
        (ADDRESS, "The new address is 5 Oak Road, zip 5003: do you confirm?", YES),
        (CANCEL, f"I will cancel the order and send a mail to the email on file. {ASK}", YES),
        (CANCEL, "Thank you, your identity is verified. What would you like me to do?", WISH),
        # explicit questions for a yes, and open questions
        (CANCEL, "I will cancel your order #W1 because it is no longer needed. Could you please "
         "confirm (yes/no)?", YES),
        (CANCEL, f"Order #W1, which is pending, will be cancelled: {ASK.lower()}", YES),
        (CANCEL, "I will cancel order #W1. Can you confirm that you want to proceed?", YES),
        (CANCEL, "I will cancel order #W1. Could you confirm the cancellation?", YES),
        (CANCEL, "Could you confirm which payment method of order #W1 you prefer?", WISH),
        (CANCEL, "Order #W1 was found. Could you please confirm the items you mean?", WISH),
        (CANCEL, "Sorry, I cannot find the order. Could you repeat its number?", WISH),
        (CANCEL, "Before this can be done, which order is it?", WISH),
        (CANCEL, "That cannot be done yet. Please tell me the reason.", WISH),
        (RETURN, "Shall I go on?", YES),
        # objections
        (EXCHANGE, "An exchange is not possible for #W2. Shall I return the Mug and Rain Coat "
         "instead? (yes/no)", ACT),
        (EXCHANGE, f"I can't exchange #W2, so I will return the Mug and Rain Coat. {ASK}", ACT),
        (CANCEL, "Shall I change the address of order #W1 to 9 Elm Road?", ACT),
        (CANCEL, "Shall I ship order #W1 to 9 Elm Road?", ACT),
        (CANCEL, f"I will modify the items of order #W1. {ASK}", ACT),
        (CANCEL, f"I will cancel order #W1 and return the Mug. {ASK}", ACT),
        (CANCEL, f"I will change the payment method of order #W1. {ASK}", ACT),
        (RETURN, f"I will cancel #W2. {ASK}", ACT),
        (MODIFY, f"I will return the Mug and the Rain Coat of #W2. {ASK}", ACT),
        (EXCHANGE, "I will exchange the Mug (red) for the green one and the Rain Coat for an XL of "
         f"#W2. {ASK}", OPTIONS),
        (EXCHANGE, f"I will exchange:\n- the Mug to green\n- the Rain Coat to size M\n{ASK}",
         OPTIONS),
        (SWAP, f"I exchange the Rain Coat for size S and the Mug of #W2. {ASK}", OPTIONS),
        (SWAP, f"I exchange the Rain Coat of #W2. {ASK}", FORGOT),
        (RETURN, "I will return the Mug of #W2, the money goes to gift_card_2 instead of "
         f"credit_card_1. {ASK}", PAID),
        (RETURN, f"I will refund the Mug of #W2 from the order to gift_card_2. {ASK}", PAID),
        (RETURN, f"I will return the Mug of #W1 to credit_card_1. {ASK}", NO + "the order"),
        (PAYMENT, f"I will change the payment of #W1 from credit_card_1 to gift_card_2. {ASK}",
         PAID),
        (ADDRESS, f"I will change the address of #W1 to 9 Elm Road instead of 5 Oak Road. {ASK}",
         NO + "the address"),
        (RETURN, f"Items: Lamp. I will return these items of #W2. {ASK}", ITEM),
        (RETURN, f"I will return the Mug and the Lamp of #W2. {ASK}", ITEM),
        # agreement, in other words too
        (EXCHANGE, "I will exchange these items of #W2:\n- Mug (red) to Mug (blue)\n- Rain Coat "
         "size L to size M\n\nThe difference is paid with credit_card_1. You will get a mail on "
         f"how to return the old items. {ASK}", YES),
        (EXCHANGE, "I will exchange the red Mug for a blue Mug and the Rain Coat for one in size "
         "M, using credit_card_1. Do you want me to proceed?", YES),
        (MODIFY, "I'll swap the Mug for the blue one and the Rain Coat for size M in order #W2. "
         "You will not be able to modify or cancel the order anymore. Shall I proceed?", YES),
        (SWAP, f"I exchange the Rain Coat for size M and the Mug of #W2. {ASK}", YES),
        (PAYMENT, f"I will change the payment of #W1 from gift_card_2 to credit_card_1. {ASK}",
         YES),
        (ADDRESS, f"I will change the address of #W1 from 1 Elm Lane to 5 Oak Road. {ASK}", YES),
        (CANCEL, f"Order #W2 cannot be cancelled. I will cancel order #W1. {ASK}", YES),
        (CANCEL, f"I will cancel #W1. The refund will be returned to your card. {ASK}", YES),
        (RETURN, "Order #W2 has a Mug and a Rain Coat. I will return the Mug, refunded to "
         f"credit_card_1 rather than gift_card_2. {ASK}", YES),
        # the end of a wish
        (CANCEL, "Your order has been cancelled. Please allow 5 days for the refund. Anything "
         "else?", STOP),
        (CANCEL, "Your order has been cancelled. Please let me know if you have any other "
         "questions.", STOP),
        (CANCEL, "Sorry, I cannot do that.", STOP),
    ],
)  # fmt: skip
def test_scripted_user_answers_a_message(instruction: str, message: str, answer: str):
    customer = user(instruction)
    customer.start()
    reply = customer.reply(message).text
    assert reply.startswith(answer)
    if answer.startswith("No"):  # a correction states the wish again
        assert customer.request.order in reply


@pytest.mark.parametrize(
    "message",
    [
        "Hello! How may I help you today?", "What would you like me to do?", "",
        "Your name has been verified, thank you.", "Please confirm the order id and the items.",
        "Your order was delivered. Which items do you mean?", "How should I refund you?",
        "Could you confirm which payment method you prefer?",
    ],
)  # fmt: skip
def test_open_questions_get_the_wish(message: str):
    customer = user()
    first = customer.start().text
    assert customer.reply(message).text in first and not customer.confirmed
    assert customer.request.order == "#W2"


@pytest.mark.parametrize(
    "report",
    [
        "Your return has been submitted. You will receive a confirmation email shortly.",
        "Your return request has been confirmed.", "I've completed the return.",
    ],
)  # fmt: skip
def test_report_is_no_question(report: str):
    customer = user()
    first = customer.start().text
    customer.reply(f"I will return the Mug of order #W2 to credit_card_1. {ASK}")
    assert customer.confirmed
    said = customer.reply(report).text
    assert not said.startswith(("Yes", "No")) and said not in first


@pytest.mark.parametrize(
    "question",
    [
        "I need explicit confirmation (yes) for that.", "Please reply with confirmation.",
        "May I have confirmation?", "Can this be confirmed?", "I need your explicit confirmation.",
    ],
)  # fmt: skip
def test_request_for_confirmation_is_answered(question: str):
    customer = user()
    customer.start()
    offer = "I will return the Mug of order #W2 to credit_card_1."
    assert customer.reply(f"{offer} {question}").text.startswith("Yes") and customer.confirmed


def test_wishes_come_one_by_one():
    customer = user()
    first, more = customer.start().text, "Is there anything else you would like to return?"
    assert "#W1" not in first
    assert customer.reply(more).text == "No, only that." and customer.reply("Hm.").text in first
    proposal = f"I will return the Mug of #W2, refunded to credit_card_1. {ASK}"
    assert customer.reply(proposal).text.startswith(YES)
    assert "#W2" in customer.reply("The number, could you repeat it?").text
    second = customer.reply("It is done. Anything else?").text
    assert "#W1" in second and "no longer needed" in second
    assert customer.reply(f"I cancel #W1. {ASK}").text.startswith(YES)
    assert customer.reply("That has been done.").text == STOP


def test_mini_user_is_reactive():
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
    """A chat function with fixed lines; it records its calls."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.seen, self.seeds = list(lines), [], []

    def __call__(self, messages: list[Message], seed: int) -> str:
        self.seen, self.seeds = list(messages), [*self.seeds, seed]
        line = self.lines.pop(0)
        if line == "break":
            raise OSError("no answer")
        return line


def test_model_plays_the_user():
    model = Model("Hi, I want a refund.", "#W2, please.", STOP)
    customer = LLMUser("You want a refund for #W2.", model, 5)
    assert customer.start().text == "Hi, I want a refund."
    assert "refund for #W2" in model.seen[0].content and STOP in model.seen[0].content
    assert [m.role for m in model.seen[1:]] == ["user"]
    assert customer.reply("Which order?").fault == "" and customer.reply("Done.").stops
    assert len(set(model.seeds)) == 3


@pytest.mark.parametrize(
    "line, fault", [("It is #W9.", "invented"), (f"Bye. {STOP}", "broke_off"), ("Hi.", "")]
)
def test_faults_of_a_model_are_recorded(line: str, fault: str):
    assert LLMUser("You want a refund for #W2.", Model(line), 5).start().fault == fault


def test_thoughts_of_a_model_are_not_said():
    thought = f"<think>At the end I must write {STOP}.</think>\nPlease help."
    first = LLMUser("You want a refund for #W2.", Model(thought), 5).start()
    assert first.text == "Please help." and not first.stops


@pytest.mark.parametrize("line", ["", "break", "<think>I want"])
def test_silent_model_breaks_the_episode(line: str):
    env = tau_env("mini", None, user="llm", llm=Model("Hi.", line))
    env.reset(env.tasks("train")[0], 0)
    with pytest.raises(SimulatorError):
        env.step('respond("How can I help?")')
    env.llm = Model(line)
    with pytest.raises(SimulatorError):
        env.reset(env.tasks("train")[0], 0)


def test_person_is_the_user(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.StringIO("I want my money.\n"))
    person = HumanUser("You want a refund.")
    assert person.start().text == "I want my money." and person.reply("Why?").text == STOP
    shown = capsys.readouterr()
    assert "You want a refund." in shown.err and "Why?" in shown.err and shown.out == ""


def test_pass_hat_k_and_blame(services: Path):
    assert pass_hat_k([True, True, False, False], 2) == pytest.approx(1 / 6)
    assert [pass_hat_k([True, True, True], k) for k in (1, 3)] == [1.0, 1.0]
    with pytest.raises(ValueError):
        pass_hat_k([True], 2)
    env = tau_env("retail", services)
    task, nothing = env.tasks("train")[0], env.tasks("test")[0]
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
