"""Commands that pages print, and the folder and environment in which they run.

A page may use MODEL, the folder of an instruction-tuned model: here a tiny random one. A server
that a page starts at port 8000 gets another port.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.builders.transformers_server import (
    free_port,
    transformers_server,
    write_talking_model,
)
from tests.paths import ROOT

BLOCK = re.compile(r"^```console[ ]*(?P<info>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = ("agentrl", "pip", "python", "printf", "transformers")
PRINTED_PORT = 8000
SMALL = {
    "eval": ["eval.tasks=1", "eval.episodes_per_task=1", "eval.splits=[test]", "eval.greedy=false",
             "rollout.max_new_tokens=6", "rollout.max_seq_len=1700", "hardware.threads=1"],
    "calibrate": ["n=1"],
    "diagnose": ["--critic-updates=1", "--policy-updates=1"],
}  # fmt: skip
SMALL["train"] = [
    *SMALL["eval"], "steps=1", "eval.baseline=false", "rollout.episodes_per_step=8",
]  # fmt: skip
SMALL_NLAC = [
    "algo.min_parse_rate=0", "algo.turns_per_update=8", "algo.diagnostics.num_states=0",
    "algo.advanced.role_tokens=6",
]  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A printed command; `is_small`: it runs with additional small sizes."""

    line: str
    is_small: bool

    def small(self) -> str:
        words = self.line.split()
        more = SMALL.get(words[1], []) if words[0] == "agentrl" and self.is_small else []
        more = [*more, *(SMALL_NLAC if more and "algo=nlac" in words else [])]
        return " ".join([self.line, *(f"'{word}'" for word in more)])


def commands(text: str) -> list[Command]:
    """Return the commands of console blocks that are to run; a backslash continues a line."""
    found = []
    for block in BLOCK.finditer(text):
        if "no-run" not in block["info"]:
            lines = block["body"].replace("\\\n", " ").splitlines()
            printed = [line[2:] for line in lines if line.startswith("$ ")]
            found += [Command(line, block["info"].strip() == "small") for line in printed]
    return [command for command in found if command.line.split()[0] in PROGRAMS]


@dataclass
class Place:
    """The place in which the commands of a page run; closing `servers` ends the servers."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    servers: ExitStack = field(default_factory=ExitStack)

    def run(self, command: Command) -> None:
        """Run a command, or start a server. Raises AssertionError with its output if it fails."""
        words = command.line.split()
        if words[:2] == ["transformers", "serve"]:
            assert words[3:] == ["--port", str(PRINTED_PORT)], command.line
            self.servers.enter_context(transformers_server(words[2], self.port, self.folder))
            return
        line = command.small().replace(f"127.0.0.1:{PRINTED_PORT}", f"127.0.0.1:{self.port}")
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"


def place_for(page: list[Command], folder: Path) -> Place:
    lines = " ".join(command.line for command in page)
    programs = Path(sys.executable).parent
    if "MODEL" in lines:
        write_talking_model(folder / "MODEL")
    if any(command.line.startswith("pip ") for command in page):
        programs = _environment(folder / "environment")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return Place(folder, {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"})


def _environment(folder: Path) -> Path:
    """Return the folder of programs of a new environment, in which this project is installed and
    all present packages are visible."""
    venv.create(folder, with_pip=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=paths))
    present = sysconfig.get_path("purelib")
    (own / "present.pth").write_text(f"import site; site.addsitedir({present!r})\n")
    programs = Path(sysconfig.get_path("scripts", vars=paths))
    install = [str(programs / "pip"), "install", "--quiet", "--no-deps", "--editable", str(ROOT)]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
    return programs
