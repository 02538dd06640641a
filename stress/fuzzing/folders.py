"""Run folders: a file is damaged, and sometimes the record of its checkpoint is signed again. Then
`ls`, `show`, `report` and the reading part of `resume` read the folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl_cli.cli.main import app
from agentrl_cli.cli.train import validate_resume
from agentrl_cli.config.compose import check, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.report.compare import gather, render
from agentrl_cli.report.page import run_page, write
from agentrl_cli.runs import checkpoints
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import Parts, build_parts
from stress.fuzzing.mutations import Draw, mutated_bytes, mutated_file
from stress.fuzzing.target import Target, Unfit
from tests.builders.report import write_run
from tests.builders.runs import trained

SAID = {"value": 0.5, "thoughts": [{"text": "x", "value": 0.1}],
        "critic": {"forecasts": ["No. Success.", "Failure."], "others": ["x"],
        "critique": "Optimality: Yes",
                   "verdict": True, "refined": "A cat."},
                   "privileged": {"object": "cat"}}  # fmt: skip
SHOWN = (["ls"], ["ls", "--json"], ["show"], ["show", "--won"], ["show", "--changed"], ["show",
"--json"],
         ["show", "--ledger"], ["show", "--episode", "t-dog"], ["show", "--step", "0"])  # fmt: skip
Case = tuple[str, bytes, tuple[str, ...], bool]  # the spoilt file, its bytes, the verb, signed anew


def target(home: Path) -> Target:
    """Return the target of two folders: a synthetic run with critic texts and an intact run,
    and a trained run of NLAC."""
    write_run(home / "made" / "hurt", said=SAID)
    write_run(home / "made" / "sound", seed=1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = trained(home / "trained", "nlac", "hurt", "steps=2")
    parts = build_parts(check(load(run.config_file, [])), None)
    sources = {"made": home / "made" / "hurt", "trained": run.folder}
    _show(("write",), sources["made"], home)  # modules are loaded on first use
    found = {name: sorted(_spoilable(folder)) for name, folder in sources.items()}

    @st.composite
    def cases(draw: Draw) -> Case:
        which = draw(st.sampled_from(("made", "made", "trained")))
        file = draw(st.sampled_from(found[which]))
        content = (sources[which] / file).read_bytes()
        is_json = file.endswith((".json", ".jsonl"))
        spoilt = draw(mutated_file(content) if is_json else mutated_bytes(content))
        verbs = [["resume"]] if which == "trained" else [*SHOWN, ["report"], ["write"]]
        return f"{which}/{file}", spoilt, tuple(draw(st.sampled_from(verbs))), draw(st.booleans())

    def run_case(case: Case) -> None:
        which, _, file = case[0].partition("/")
        folder = _copied(sources[which], home / "now")
        target = folder / file
        target.unlink()
        target.write_bytes(case[1])
        if case[3]:
            _sign(target)
        if case[2] == ("resume",):
            _resume(Run(folder), parts)
        else:
            _show(case[2], folder, home)

    return Target(cases(), run_case, _named)


def _spoilable(folder: Path) -> list[str]:
    """Return the files of a run that hold text, and the weights of a checkpoint's models."""
    kept = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = [str(path.relative_to(folder)) for path in kept]
    left_out = ("cost.json", "log.txt", "tokenizer.json")
    return [name for name in names if not name.endswith(left_out)]


def _copied(source: Path, now: Path) -> Path:
    """Copy the run folder `hurt` and the intact run next to it; large files are links."""
    shutil.rmtree(now, ignore_errors=True)
    for folder in (source, source.parent / "sound"):
        if folder.exists():
            shutil.copytree(folder, now / folder.name, copy_function=os.link)
    # Resume truncates these files, so they must not be links.
    for file in (now / "hurt").rglob("*.jsonl"):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
    return now / "hurt"


def _sign(file: Path) -> None:
    """Update the record of the checkpoint that holds a damaged file, so that the file is
    read."""
    folder = next((path for path in file.parents if (path / checkpoints.RECORD).exists()), None)
    if folder is None:
        return
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, RecursionError):
        record = json.loads((folder / checkpoints.RECORD).read_text())
        if file.name != checkpoints.RECORD:
            name = str(file.relative_to(folder))
            record["files"][name] = checkpoints.digest_of_file(file)
        content = {key: value for key, value in record.items() if key != "digest"}
        record["digest"] = checkpoints.digest_of_record(content)
        (folder / checkpoints.RECORD).unlink()
        (folder / checkpoints.RECORD).write_text(json.dumps(record))


def _resume(run: Run, parts: Parts) -> None:
    """Read everything that `resume` reads before training."""
    with run.lock():
        cfg = check(load(run.config_file, ["steps=9"]))
        checkpoint = run.whole_checkpoint()
        validate_resume(run, cfg, checkpoint)
        parts.buffer.path = run.folder / "buffer.jsonl"
        parts.restore(checkpoint)
        run.truncate_logs(checkpoint)
        run.metrics()


def _show(verb: tuple[str, ...], folder: Path, home: Path) -> None:
    """Show a folder with the commands that only read."""
    if verb[0] == "report":
        compared = gather([str(folder.parent)])
        _check_output(render(compared, 200))
        for section in compared.sections:
            for group in section.groups:
                for record in group.records:
                    run_page(record, group.label)
    elif verb[0] == "write":
        write(gather([str(folder)]), home / "report", pages=True)
    else:
        name = folder.parent if verb[0] == "ls" else folder
        _call(verb[0], str(name), *verb[1:])


def _call(*arguments: str) -> None:
    """Run a command. Raises UserError with its message if it refuses."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    _check_output(result.output)
    if result.exit_code == 2:
        raise UserError(result.stderr.strip())
    if result.exit_code:
        raise Unfit(f"exit code {result.exit_code}")


def _check_output(text: str) -> None:
    """Raise Unfit if a text would move the cursor of a terminal."""
    for character in text:
        if not character.isprintable() and character != "\n":
            raise Unfit(f"control character {character!r} in {text[:80]!r}")


def _named(case: Case) -> list[str]:
    """Return the texts of which a refusal must contain one: the run's name, or any text if its
    configuration is damaged."""
    return [] if case[0].endswith("config.yaml") else ["hurt"]
