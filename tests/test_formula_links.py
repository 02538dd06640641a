"""The links from formulas to lines lead to the definitions that they name."""

from __future__ import annotations

from tools.formula_links import LINK, PAGE, relinked


def test_every_formula_leads_to_its_line():
    text = PAGE.read_text()
    assert len(LINK.findall(text)) > 25
    assert relinked(text) == text, "run python tools/formula_links.py"


def test_a_wrong_line_is_mended():
    wrong = "[`Roles.back_up`](../agentrl_cli/algos/nlac/roles.py#L1)"
    assert relinked(wrong) != wrong and relinked(relinked(wrong)) == relinked(wrong)
