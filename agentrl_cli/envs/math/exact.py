r"""Exact values of arithmetic in LaTeX: integers, decimals, fractions, powers, roots, factorials
and binomials, with `+ - \cdot \times * / \div` and implicit products.

Nothing is rounded. Sizes are limited, so no text takes long. A text that can be read in two ways,
such as `1/2(3)` or `2^{3}!`, has no value here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|\\[A-Za-z]+|\\?.)", re.ASCII | re.DOTALL)
MAX_LENGTH = 512  # characters
MAX_BITS = 2**15  # of a numerator or denominator: 2006! has 19,000
MAX_WORK = 2**18  # bits of all intermediate values together
MAX_ROOT_BITS = 2**12  # of a number whose cube root or higher root is taken
MAX_DEPTH = 30  # of groups within groups
TIMES = ("*", r"\cdot", r"\times")
OVER = ("/", r"\div")
CLOSING = {"{": "}", "(": ")"}


def evaluate(text: str) -> Fraction:
    """Return the value of a text of numbers and operations. Raises ValueError if it is anything
    else, is not rational, or is too large, and ZeroDivisionError."""
    if len(text) > MAX_LENGTH or not any(c.isdigit() for c in text):
        raise ValueError("not arithmetic")
    return _Reader(TOKEN.findall(text)).read()


class _Reader:
    """A recursive-descent parser that evaluates as it reads."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.depth, self.work = [*tokens, ""], 0, 0, 0

    def read(self) -> Fraction:
        value = self.sum()
        if self.next:
            raise ValueError(f"unexpected {self.next}")
        return value

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def take(self, *tokens: str) -> str:
        """Return the next token and go on, if it is one of these; else ''."""
        if (token := self.next) and token in tokens:
            self.at += 1
            return token
        return ""

    def checked(self, value: Fraction) -> Fraction:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self.work += bits
        if bits > 2 * MAX_BITS or self.work > MAX_WORK:
            raise ValueError("too large")
        return value

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.take("+", "-"):
            value = self.checked(value + (1 if sign == "+" else -1) * self.product())
        return value

    def product(self) -> Fraction:
        value, divided = self.signed(), False
        while True:
            if self.take(*TIMES):
                value, divided = self.checked(value * self.signed()), False
            elif self.take(*OVER):
                value, divided = self.checked(value / self.signed()), True
            elif self.next in ("", "+", "-", "}", ")", "]"):
                return value
            elif divided or (is_number(self.tokens[self.at - 1]) and self.starts_number()):
                raise ValueError("ambiguous product")
            else:
                value = self.checked(value * self.power())

    def starts_number(self) -> bool:
        return is_number(self.next) or self.next == r"\frac"  # 2\frac{1}{2} is a mixed number

    def signed(self) -> Fraction:
        sign = 1
        while token := self.take("+", "-"):
            sign = -sign if token == "-" else sign
        return sign * self.power()

    def power(self) -> Fraction:
        value = self.factorial()
        if self.take("^"):
            exponent = self.argument()
            if self.next in ("^", "!"):
                raise ValueError("ambiguous power")
            value = self.checked(self.raised(value, exponent))
        return value

    def factorial(self) -> Fraction:
        value = self.atom()
        if self.take("!"):
            if self.next == "!" or value.denominator != 1 or value < 0:
                raise ValueError("not a factorial")
            if value > MAX_BITS or value * int(value).bit_length() > MAX_BITS:
                raise ValueError("too large")
            value = self.checked(Fraction(math.factorial(int(value))))
        return value

    def atom(self) -> Fraction:
        token = self.next
        self.at += 1
        if is_number(token):
            return Fraction(token)
        if token in CLOSING:
            return self.group(CLOSING[token], self.sum)
        if token == r"\frac":
            return self.checked(self.argument() / self.argument())
        if token == r"\binom":
            return self.binomial(self.argument(), self.argument())
        if token == r"\sqrt":
            degree = self.group("]", self.sum) if self.take("[") else Fraction(2)
            return self.raised(self.argument(), 1 / degree)
        raise ValueError(f"unexpected {token}")

    def argument(self) -> Fraction:
        """Return the value of a group in braces or of one digit."""
        if self.take("{"):
            return self.group("}", self.sum)
        digit = self.next
        if not (len(digit) == 1 and is_number(digit)):
            raise ValueError("no argument")
        self.at += 1
        return Fraction(digit)

    def group(self, closing: str, inside: Callable[[], Fraction]) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("too deep")
        value = inside()
        if not self.take(closing):
            raise ValueError(f"no {closing}")
        self.depth -= 1
        return value

    def binomial(self, n: Fraction, k: Fraction) -> Fraction:
        if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
            raise ValueError("not a binomial")
        if min(k, n - k) * int(n).bit_length() > MAX_BITS:
            raise ValueError("too large")
        return self.checked(Fraction(math.comb(int(n), int(k))))

    def raised(self, base: Fraction, exponent: Fraction) -> Fraction:
        """Return a power, if it is rational."""
        if base == 0 and exponent <= 0:
            raise ValueError("undefined")
        if exponent.denominator != 1:
            base = root(base, exponent.denominator)
        power = exponent.numerator
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base not in (0, 1, -1) and abs(power) * bits > 2 * MAX_BITS:
            raise ValueError("too large")
        return base if base in (0, 1) else base ** (power % 2 if base == -1 else power)


def is_number(token: str) -> bool:
    return token.isascii() and token.replace(".", "0", 1).isdigit() and token != "."


def root(value: Fraction, degree: int) -> Fraction:
    """Return the exact root. Raises ValueError if it is not rational."""
    parts = [_integer_root(part, degree) for part in (value.numerator, value.denominator)]
    return Fraction(*parts)


def _integer_root(value: int, degree: int) -> int:
    if value < 0 or degree > MAX_BITS:
        raise ValueError("not real")
    if degree == 2:
        found = math.isqrt(value)
    elif value.bit_length() > MAX_ROOT_BITS:
        raise ValueError("too large")
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:  # the largest whole root
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        found = low
    if found**degree != value:
        raise ValueError("not rational")
    return found
