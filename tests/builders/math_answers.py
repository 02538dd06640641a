"""Answers for the grader: hard pairs of our own with the expected verdict, and hostile texts."""

from __future__ import annotations

import random

# (answer, right answer, whether it should count as right)
HARD = [
    # numbers in other notations
    ("0.5", r"\frac{1}{2}", True),
    (".5", r"\frac12", True),
    ("1/2", r"\dfrac{1}{2}", True),
    (r"\frac{2}{4}", r"\tfrac{1}{2}", True),
    ("-0.25", r"-\frac{1}{4}", True),
    (r"\frac{-1}{4}", r"-\frac{1}{4}", True),
    (r"-\frac{1}{-4}", r"\frac14", True),
    (r"3\frac{1}{2}", r"\frac{7}{2}", True),
    ("3 1/2", "3.5", True),
    ("31/2", r"3\frac{1}{2}", False),
    ("1,000", "1000", True),
    (r"12{,}345", "12345", True),
    ("1,0", "10", False),
    ("007", "7", True),
    ("5.0", "5", True),
    ("0.333", r"\frac{1}{3}", False),
    ("0.3333333", r"\frac{1}{3}", False),
    (r"3\times10^{4}", "30000", True),
    (r"2.5\cdot 10^{-2}", "0.025", True),
    ("−7", "-7", True),
    ("+7", "7", True),
    ("- 7", "-7", True),
    ("2 3", "23", False),
    # wrapping, units, names
    ("$42$", "42", True),
    (r"\(42\)", "42", True),
    (r"\text{42}", "42", True),
    ("42.", "42", True),
    (r"x=42", "42", True),
    ("42", "x = 42", True),
    ("y=42", "x=42", False),
    ("AB", "ab", False),
    (r"42\text{ cm}", "42", True),
    (r"42\text{ cm}", r"42\mbox{ cm}", True),
    (r"42\text{ cm}", r"42\text{ m}", False),
    (r"42\text{ cm}^2", "42", True),
    (r"90^\circ", "90", True),
    (r"90^{\circ}", "90°", True),
    (r"\$18.90", "18.9", True),
    (r"50\%", "50", True),
    (r"\text{(C)}", "C", True),
    ("(C)", r"\textbf{(D)}", False),
    ("Ann", r"\text{Ann}", True),
    ("ann", r"\text{Ann}", True),
    (r"\text{Anne}", r"\text{Ann}", False),
    (r"\boxed{6}", "6", True),
    (r"First \boxed{5}, no: \boxed{6}.", "6", True),
    (r"First \boxed{6}, no: \boxed{5}.", "6", False),
    (r"\boxed{\frac{1}{2}} and \boxed{7", "0.5", True),
    (r"5\text{ or }6", "5", False),
    ("5 6", "56", False),
    # roots, powers, constants
    (r"2\sqrt{2}", r"\sqrt{8}", True),
    (r"\sqrt8", r"2\sqrt 2", True),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", True),
    (r"2\sqrt{3}", r"3\sqrt{2}", False),
    ("3.14", r"\pi", False),
    (r"\frac{\pi}{2}", r"0.5\pi", True),
    ("2^{10}", "1024", True),
    ("2^10", "1024", True),
    ("10^3", "1000", True),
    (r"e^{i\pi}", "-1", True),
    (r"\frac{22}{7}", r"\pi", False),
    (r"\sqrt[3]{27}", "3", True),
    # expressions
    ("x^2+2x+1", "(x+1)^2", True),
    ("x^2+1", "(x+1)^2", False),
    ("2x+3", "3+2x", True),
    ("2x-3", "3-2x", False),
    (r"\frac{x+1}{2}", "0.5x+0.5", True),
    ("q-p", "p-q", False),
    ("y=2x+1", "y = 1 + 2x", True),
    ("y=2x+1", "y=2x-1", False),
    (r"\sin^2 x+\cos^2 x", "1", True),
    ("a+b", "ab", False),
    ("n(n+1)/2", r"\frac{n^2+n}{2}", True),
    ("|x-2|", "|2-x|", True),
    # intervals, tuples, sets, matrices
    ("(1,2)", "(2,1)", False),
    ("(1,2)", r"\left( 1, 2 \right)", True),
    ("(0.5,3)", r"\left(\frac{1}{2},3\right)", True),
    ("(1,2]", "(1,2)", False),
    ("[1,2]", "(1,2)", False),
    (r"(-\infty,2)", r"(-\infty, 2)", True),
    (r"(-\infty,2]\cup[3,\infty)", r"[3,\infty)\cup(-\infty,2]", True),
    (r"\{1,2\}", r"\{2,1\}", True),
    (r"\{1,2\}", r"\{1,2,3\}", False),
    ("2,1", "1,2", True),
    ("1,2", "1,2,3", False),
    (r"\frac{\pi}{6}", "30", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", False),
    (r"\begin{pmatrix}\frac12\\2\end{pmatrix}", r"\begin{pmatrix}0.5\\2\end{pmatrix}", True),
    ("x>2", "2<x", True),
    ("x>2", r"x\geq 2", False),
    ("52", "52_8", True),
    ("52_8", "52_{8}", True),
    ("52_8", "52_7", False),
    ("5", "101_2", False),
    (r"3+2i", "2i+3", True),
    (r"3+2i", "3-2i", False),
    # lists in words, equations, groups of digits
    (r"x=2 \text{ or } x=3", "2,3", True),
    ("2,3", r"x=2\text{ or }x=3", True),
    ("2,4", r"x=2\text{ or }x=3", False),
    (r"3\text{ and }5", "5,3", True),
    (r"3\text{ or }5", "35", False),
    ("2x+3=y", "y=2x+3", True),
    ("y=2x+3", "2x+3=y", True),
    ("2x+4=y", "y=2x+3", False),
    ("x^2", "f(x)=x^2", True),
    ("g(x)=x^2", "f(x)=x^2", False),
    ("200, 100", "100, 200", True),
    ("360, 120, 240", "120, 240, 360", True),
    ("100,  200", "100, 200", True),
    ("100, 200", "100200", False),
    ("100200", "100, 200", False),
    (r"1\,000\,000", "1000000", True),
    ("11111111100", r"11,\! 111,\! 111,\! 100", True),
    (r"0.\overline{3}", r"\frac13", True),
    (r"2.1\overline{6}", r"\frac{13}{6}", True),
    (r"0.\overline{3}", r"0.\overline{4}", False),
    (r"\frac\pi2", r"\frac{\pi}{2}", True),
    (r"2\pi r", r"2r\pi", True),
    (r"\sin30^\circ", r"\frac12", True),
    (r"\cos(60°)", "0.5", True),
    (r"\sin 30", r"\sin 30^\circ", False),
    # units
    (r"25\pi\text{ cm}^2", r"25\pi", True),
    (r"25\pi", r"25\pi\text{ cm}^2", True),
    (r"36\pi\text{ cubic inches}", r"36\pi", True),
    (r"36\pi\text{ cubic inches}", r"36\pi\text{ in}^3", True),
    (r"5\,\text{cm}^3", r"5\text{ cm}^2", False),
    (r"5\mathrm{~cm}^2", r"5\text{ cm}^2", True),
    ("5 cm", r"5\text{ m}", False),
    ("5 cm", r"5\text{ centimeters}", True),
    ("5 m", r"5\text{ cm}", False),
    ("5 dollars", "5", True),
    (r"5\text{ inches}", r"5\text{ in}", True),
    (r"5\text{ in}", r"5\text{ inches}", True),
    (r"5\text{ feet}", r"5\text{ inches}", False),
    # nothing to read
    ("", "5", False),
    (r"\boxed{}", "5", False),
    (r"\boxed{ }", "0", False),
    ("I do not know", "5", False),
    ("5" * 600, "5", False),
    (r"\frac{1}{0}", "0", False),
]  # fmt: skip

MISJUDGED = {  # of these, and why
    (r"e^{i\pi}", "-1"): "math-verify reads i as a real symbol where the right answer is real",
    ("AB", "ab"): "math-verify reads letters of either case alike",
}


def hostile(count: int, seed: int = 0) -> list[str]:
    """Answers made to hang, crash or fool a grader, the same for a seed."""
    draw = random.Random(seed)
    return [draw.choice(MAKERS)(draw) for _ in range(count)]


def _tower(draw: random.Random) -> str:
    height = draw.randint(3, 12)
    return "^{".join([str(draw.randint(2, 99))] * height) + "}" * (height - 1)


def _noise(draw: random.Random) -> str:
    alphabet = (
        r"\{}()[]^_$%&#~<>|+-*/=.,;:!?0123456789abcxyzπ∞√" + "\x00\x07\x1b\u202e\ud7ff\U0001f41f"
    )
    return "".join(draw.choices(alphabet, k=draw.randint(1, 500)))


def _words(draw: random.Random) -> str:
    parts = [
        r"\frac",
        r"\sqrt",
        r"\left(",
        r"\right)",
        "{",
        "}",
        "^",
        "_",
        r"\int",
        r"\sum",
        "x",
        "9",
    ]
    return "".join(draw.choices(parts, k=draw.randint(10, 120)))


MAKERS = (
    lambda draw: "(" * (n := draw.randint(100, 2000)) + "1" + ")" * n,
    lambda draw: "(" * (n := draw.randint(20, 250)) + "x" + ")" * n,
    lambda draw: "{" * (n := draw.randint(20, 250)) + "1" + "}" * n,
    lambda draw: "[" * draw.randint(20, 500),
    _tower,
    lambda draw: f"{_tower(draw)}+{_tower(draw)}",
    lambda draw: f"({draw.randint(2, 9)}+x)^{{{draw.randint(10**3, 10**9)}}}",
    lambda draw: f"{draw.randint(10**4, 10**6)}!",
    lambda draw: "!".join(["9"] * draw.randint(2, 40)) + "!",
    lambda draw: r"\binom{" + "9" * draw.randint(3, 60) + "}{" + "4" * draw.randint(2, 30) + "}",
    lambda draw: "9" * draw.randint(100, 100_000),
    lambda draw: "1." + "0" * draw.randint(10, 400) + "1",
    lambda draw: "x" * draw.randint(50, 100_000),
    lambda draw: r"\frac{1}{" * (n := draw.randint(10, 120)) + "2" + "}" * n,
    lambda draw: r"\sqrt{" * (n := draw.randint(10, 120)) + "2" + "}" * n,
    lambda draw: r"\boxed{" * draw.randint(2, 20_000),
    lambda draw: r"\sum_{n=1}^{" + "9" * draw.randint(3, 40) + "} n^{n}",
    lambda draw: r"\int_0^{" + str(draw.randint(1, 99)) + r"} \sin(x^{x^{x}})\,dx",
    lambda draw: r"\prod_{n=1}^{10^{9}} (x+n)",
    lambda draw: "+".join(f"x^{{{draw.randint(2, 999)}}}" for _ in range(draw.randint(5, 60))),
    lambda draw: ",".join(str(draw.randint(0, 9)) for _ in range(draw.randint(5, 250))),
    lambda draw: r"\begin{pmatrix}" * draw.randint(1, 25),
    lambda draw: "".join(chr(draw.randint(0, 31)) for _ in range(draw.randint(1, 400))),
    lambda draw: r"\def\a{\a\a}\a" * draw.randint(1, 30),
    lambda draw: "__import__('os').system('true')",
    lambda draw: "$" * draw.randint(1, 500),
    _noise,
    _words,
)  # fmt: skip
