"""A generator that solves badly, thought by thought, and knows every role, in place of a model."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from agentrl_cli.generators.base import Completion
from tests.fakes.coin import MAX_HEADER_LENGTH, ROLE_ANSWERS, RandomRoleGenerator

REPLIES = (
    "3+3=6\n\n6+1=7\n\n\\boxed{7}",
    "3+4=8\n\n\\boxed{8}",
    "3+4=7\n\nThe answer is 7.",
    "\\boxed{7}\n\n",
)


@dataclass(kw_only=True)
class StudentGenerator(RandomRoleGenerator):
    """Writes one of a few replies of which half are right."""

    def _complete(self, prompt: list[int], draw: random.Random) -> Completion:
        text = self.chat.text_of(prompt[-200:])
        if any(end in text[-len(end) - MAX_HEADER_LENGTH :] for end in ROLE_ANSWERS):
            return super()._complete(prompt, draw)
        ids = self.chat.encode_action(draw.choice(REPLIES))
        return Completion(ids, [-1.0] * len(ids), "stop")


def student_overrides(root: Path) -> list[str]:
    """Overrides that let the student play: problems of our own whose answer is always 7, and a
    folder of groups with its hardware."""
    file, folder = root / "rows.jsonl", root / "groups" / "hardware"
    solved = "It is seven.\n\n\\boxed{7}"
    lines = [{"problem": f"{i}+{7 - i}?", "level": 1, "subject": "Sums", "answer": 7,
              "solution": solved} for i in range(8)]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "student.yaml").write_text(
        "# a student\ndevice: cpu\nthreads: 1\nmicrobatch_tokens: 4096\n"
        "generator: {_target_: tests.fakes.student.StudentGenerator}\n"
    )
    return ["env=arithmetic", f"env.data={file}", "env.test_share=0.5", "hardware=student"]
