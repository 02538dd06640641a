"""What retail's scripted user understands: who asks for its identity or a yes, what a proposal
holds that it does not want, and when its wish has ended."""

from __future__ import annotations

import pytest

from agentrl_cli.envs.tau.retail_user import RetailUser
from agentrl_cli.envs.tau.users import STOP
from tests.builders.tau import INSTRUCTION

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


def answer(instruction: str, said: str) -> str:
    customer = RetailUser.of(instruction, 0, ["Mug", "Rain Coat", "Lamp"])
    customer.start()
    return customer.reply(said).text


@pytest.mark.parametrize(
    "said",
    [
        "I can help you cancel order #W1. To verify your identity, could you please provide your "
        "email or your name and zip code?",
        "May I have your first and last name, please?",
        "Please provide:\n- your email, or\n- your name",
        "Before I go on, I need to verify you. Please give me:\n1. Your order\n2. Your email",
        "Could you please confirm your email for order #W1?",
        "Who am I speaking with?",
        "I am unable to continue until you tell me who you are.",
    ],
)
def test_identity_is_given_where_it_is_asked_for(said: str):
    assert answer(CANCEL, said).startswith("My name is Ada Berg")


@pytest.mark.parametrize(
    "instruction, said",
    [
        (ADDRESS, f"The new address of your order: 5 Oak Road, Bergen, zip 5003, Norway. {ASK}"),
        (ADDRESS, "The new address is 5 Oak Road, zip 5003: do you confirm?"),
        (CANCEL, f"I will cancel the order and send a mail to the email on file. {ASK}"),
        (CANCEL, "Thank you, your identity is verified. What would you like me to do?"),
    ],
)
def test_identity_is_not_given_where_it_is_not_asked_for(instruction: str, said: str):
    assert "Ada" not in answer(instruction, said)


@pytest.mark.parametrize(
    "said",
    [
        "I will cancel your order #W1 because it is no longer needed. Could you please confirm "
        "(yes/no)?",
        f"Order #W1, which is pending, will be cancelled: {ASK.lower()}",
        "I will cancel order #W1. Can you confirm that you want to proceed?",
        "I will cancel order #W1. Could you confirm the cancellation?",
    ],
)
def test_a_clear_question_for_a_yes_wins_over_open_words(said: str):
    assert answer(CANCEL, said).startswith("Yes")


@pytest.mark.parametrize(
    "said",
    [
        "Could you confirm which payment method of order #W1 you prefer?",
        "Order #W1 was found. Could you please confirm the items you mean?",
    ],
)
def test_confirming_a_detail_is_no_yes(said: str):
    assert answer(CANCEL, said).startswith("Please cancel")


ACT, ITEM = "No, that is not what I asked for", "No, I did not ask for that item"
PAID, OPTIONS = "No, that is not the payment method", "No, those are not the options"


@pytest.mark.parametrize(
    "instruction, said, heard",
    [
        (EXCHANGE, "An exchange is not possible for #W2. Shall I return the Mug and Rain Coat "
         "instead? (yes/no)", ACT),
        (EXCHANGE, f"I can't exchange #W2, so I will return the Mug and Rain Coat. {ASK}", ACT),
        (CANCEL, "Shall I change the address of order #W1 to 9 Elm Road?", ACT),
        (CANCEL, "Shall I ship order #W1 to 9 Elm Road?", ACT),
        (CANCEL, f"I will modify the items of order #W1. {ASK}", ACT),
        (CANCEL, f"I will cancel order #W1 and return the Mug. {ASK}", ACT),
        (CANCEL, f"I will change the payment method of order #W1. {ASK}", ACT),
        (MODIFY, f"I will return the Mug and the Rain Coat of #W2. {ASK}", ACT),
        (EXCHANGE, "I will exchange the Mug (red) for the green one and the Rain Coat for an XL of "
         f"#W2. {ASK}", OPTIONS),
        (EXCHANGE, f"I will exchange:\n- the Mug to green\n- the Rain Coat to size M\n{ASK}",
         OPTIONS),
        (RETURN, "I will return the Mug of #W2, the money goes to gift_card_2 instead of "
         f"credit_card_1. {ASK}", PAID),
        (RETURN, f"I will refund the Mug of #W2 from the order to gift_card_2. {ASK}", PAID),
        (PAYMENT, f"I will change the payment of #W1 from credit_card_1 to gift_card_2. {ASK}",
         PAID),
        (ADDRESS, f"I will change the address of #W1 to 9 Elm Road instead of 5 Oak Road. {ASK}",
         "No, that is not the address"),
        (RETURN, f"Items: Lamp. I will return these items of #W2. {ASK}", ITEM),
    ],
)  # fmt: skip
def test_what_is_not_wanted_gets_a_no(instruction: str, said: str, heard: str):
    assert answer(instruction, said).startswith(heard)


@pytest.mark.parametrize(
    "instruction, said",
    [
        (EXCHANGE, "I will exchange these items of #W2:\n- Mug (red) to Mug (blue)\n- Rain Coat "
         "size L to size M\n\nThe difference is paid with credit_card_1. You will get a mail on "
         f"how to return the old items. {ASK}"),
        (EXCHANGE, "I will exchange the red Mug for a blue Mug and the Rain Coat for one in size "
         "M, using credit_card_1. Do you want me to proceed?"),
        (MODIFY, "I'll swap the Mug for the blue one and the Rain Coat for size M in order #W2. "
         "You will not be able to modify or cancel the order anymore. Shall I proceed?"),
        (PAYMENT, f"I will change the payment of #W1 from gift_card_2 to credit_card_1. {ASK}"),
        (ADDRESS, f"I will change the address of #W1 from 1 Elm Lane to 5 Oak Road. {ASK}"),
        (CANCEL, f"Order #W2 cannot be cancelled. I will cancel order #W1. {ASK}"),
        (CANCEL, f"I will cancel #W1. The refund will be returned to your card. {ASK}"),
        (RETURN, "Order #W2 has a Mug and a Rain Coat. I will return the Mug, refunded to "
         f"credit_card_1 rather than gift_card_2. {ASK}"),
    ],
)  # fmt: skip
def test_what_is_wanted_gets_a_yes_in_other_words_too(instruction: str, said: str):
    assert answer(instruction, said).startswith("Yes")


@pytest.mark.parametrize(
    "said",
    [
        "Sorry, I cannot find the order. Could you repeat its number?",
        "Before this can be done, which order is it?",
        "That cannot be done yet. Please tell me the reason.",
    ],
)
def test_the_wish_is_said_again_while_the_agent_is_asking(said: str):
    assert answer(CANCEL, said).startswith("Please cancel")


def test_nothing_more_is_wanted_before_the_wish_was_agreed():
    customer = RetailUser.of(RETURN, 0, ["Mug"])
    more = "Is there anything else you would like to return from this order?"
    first = customer.start().text
    assert customer.reply(more).text == "No, only that."
    assert customer.request.kind == "return" and customer.reply("Hm.").text in first
    assert customer.reply(f"I will return the Mug of #W2. {ASK}").text.startswith("Yes")
    assert "#W2" in customer.reply("The number, could you repeat it?").text
    assert "#W1" in customer.reply("Is there anything else?").text


@pytest.mark.parametrize(
    "said",
    [
        "Your order has been cancelled. Please allow 5 days for the refund. Anything else?",
        "Your order has been cancelled. Please let me know if you have any other questions.",
        "Sorry, I cannot do that.",
    ],
)
def test_a_wish_ends_when_it_is_done_or_refused_also_without_a_yes(said: str):
    assert answer(CANCEL, said) == STOP
