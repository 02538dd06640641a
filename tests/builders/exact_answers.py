"""Pairs of an answer and a right answer whose equality is known: values that are sums of rationals
times square roots, pi or e, written in many ways, and the same values slightly changed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

# linearly independent over the rationals, so that values are equal if their coefficients are
BASES = ("", r"\sqrt{2}", r"\sqrt{3}", r"\sqrt{7}", r"\pi", "e", "x", r"\sin x")
Value = dict[str, Fraction]  # coefficient of each base


@dataclass(frozen=True)
class Pair:
    answer: str
    gold: str
    equal: bool


def pairs(count: int, seed: int) -> list[Pair]:
    """Return pairs, a third of them equal, the same for a seed."""
    draw = random.Random(seed)
    return [_pair(draw) for _ in range(count)]


def _pair(draw: random.Random) -> Pair:
    value = _value(draw)
    other = value if draw.random() < 1 / 3 else _changed(value, draw)
    shape = draw.choice(SHAPES) if draw.random() < 0.25 else "{}"
    filler = str(draw.randint(-9, 9))
    answer, gold = (
        shape.replace("{}", write(one, draw)).replace("FILLER", filler) for one in (other, value)
    )
    return Pair(answer, gold, value == other)


def write(value: Value, draw: random.Random) -> str:
    """Return a value in a random notation."""
    terms = [(base, number) for base, number in value.items() if number]
    draw.shuffle(terms)
    if not terms:
        return "0"
    text = ""
    for base, number in terms:
        sign = "-" if number < 0 else "+" if text else ""
        text += sign + _term(base, abs(number), draw)
    return text


def _term(base: str, number: Fraction, draw: random.Random) -> str:
    if not base:
        return _rational(number, draw)
    if number == 1:
        return base
    if number.numerator == 1 or draw.random() < 0.3:
        top = base if number.numerator == 1 else f"{number.numerator}{_after_number(base)}"
        return rf"\frac{{{top}}}{{{_integer(number.denominator, draw)}}}"
    return rf"{_rational(number, draw, simple=True)}\cdot {base}"


def _after_number(base: str) -> str:
    return base if base.startswith("\\") else f" {base}"


def _integer(number: int, draw: random.Random) -> str:
    """Return a positive integer as digits, a power, a factorial or a product."""
    if draw.random() < 0.4:
        return str(number)
    for n in range(4, 400):
        if math.factorial(n) >= number:
            if math.factorial(n) == number:
                return f"{n}!"
            break
    for base in (2, 3, 5, 7, 10):
        power, left = 0, number
        while left % base == 0 and left > 1:
            power, left = power + 1, left // base
        if power > 2:
            return rf"{base}^{{{power}}}" + (rf" \cdot {left}" if left > 1 else "")
    return str(number)


def _rational(number: Fraction, draw: random.Random, *, simple: bool = False) -> str:
    """Return a positive rational as a fraction, decimal, quotient, root or sum."""
    top, bottom = number.numerator, number.denominator
    forms: list[Callable[[], str]] = [lambda: rf"\frac{{{top}}}{{{_integer(bottom, draw)}}}"]
    if bottom == 1:
        forms = [lambda: _integer(top, draw)]
    if (decimal := _decimal(number)) is not None:
        forms.append(lambda: decimal)
    if not simple:
        factor = draw.randint(2, 9)
        forms.append(lambda: rf"\frac{{{top * factor}}}{{{bottom * factor}}}")
        if bottom > 1:
            forms.append(lambda: f"{top}/{bottom}")
        if max(top, bottom) < 10**12:
            forms.append(lambda: rf"\sqrt{{\frac{{{top**2}}}{{{bottom**2}}}}}")
        if number > 10:
            part = draw.randint(1, 9)
            forms.append(lambda: rf"({part}+\frac{{{top - part * bottom}}}{{{bottom}}})")
    return draw.choice(forms)()


def _decimal(number: Fraction) -> str | None:
    """Return the finite decimal of a positive rational of at most 40 places."""
    for places in range(41):
        if 10**places % number.denominator == 0:
            digits = str(number.numerator * 10**places // number.denominator).zfill(places + 1)
            return f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return None


def _value(draw: random.Random) -> Value:
    bases = [""] if draw.random() < 0.6 else draw.sample(BASES, draw.randint(1, 2))
    return {base: _number(draw) for base in bases}


def _number(draw: random.Random) -> Fraction:
    magnitude = draw.choice(NUMBERS)(draw)
    return -magnitude if draw.random() < 0.3 else magnitude


def _changed(value: Value, draw: random.Random) -> Value:
    """Return a different value: one coefficient times 1 ± 10^-k or a power of ten, with the other
    sign, off by one, or of another base."""
    base = draw.choice(sorted(value))
    number, tiny = value[base], Fraction(1, 10 ** draw.randint(1, 12))
    kind = draw.randrange(7)
    if kind == 6:
        other = draw.choice([one for one in BASES if one not in value])
        return {**{k: v for k, v in value.items() if k != base}, other: number}
    changed = (
        number * (1 + tiny), number * (1 - tiny), -number, number + draw.choice((-1, 1)),
        number * Fraction(10) ** draw.choice((-12, -6, -2, -1, 1, 2, 12)),
        number * draw.choice((2, 3, Fraction(1, 2))),
    )[kind]  # fmt: skip
    return {**value, base: changed}


NUMBERS: tuple[Callable[[random.Random], Fraction], ...] = (
    lambda draw: Fraction(draw.randint(1, 100)),
    lambda draw: Fraction(draw.randint(1, 10**18)),
    lambda draw: Fraction(draw.randint(1, 99), draw.randint(2, 99)),
    lambda draw: Fraction(draw.randint(1, 10**9), draw.randint(2, 10**9)),
    lambda draw: Fraction(draw.randint(1, 99), draw.randint(2, 12) ** draw.randint(3, 40)),
    lambda draw: Fraction(draw.randint(2, 12) ** draw.randint(3, 40)),
    lambda draw: Fraction(draw.randint(1, 9), math.factorial(draw.randint(5, 40))),
    lambda draw: Fraction(math.factorial(draw.randint(5, 40))),
    lambda draw: Fraction(draw.randint(1, 10**6), 10 ** draw.randint(1, 12)),
)
SHAPES = (
    "(FILLER, {})", "[{}, \\infty)", r"\{{}, FILLER\}", "x = {}", "x > {}", "x^2 + {}",
    r"\begin{pmatrix} FILLER \\ {} \end{pmatrix}", r"\left|y\right| \cdot ({})",
)  # fmt: skip
