"""The verbs that change no run: show, report, ls, list, config, check, grade."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from agentrl_cli.cli import completion, help_examples
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo

if TYPE_CHECKING:
    from agentrl_cli.config.comments import Settings

GROUPS = "algo, env, model, hardware, recipe, ablation, ..."
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="group=option or key=value", autocompletion=completion.overrides),
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder with your own options.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunRef = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A folder, a unique prefix, or last.", autocompletion=completion.runs
    ),
]

app = typer.Typer()


@app.command(epilog=help_examples.SHOW)
def show(
    run: RunRef,
    episode: Annotated[str | None, typer.Option(help="The ID, or its first characters.")] = None,
    step: Annotated[int | None, typer.Option(help="The step; the newest by default.")] = None,
    won: Annotated[bool, typer.Option("--won", help="Show a won episode.")] = False,
    lost: Annotated[bool, typer.Option("--lost", help="Show a lost episode.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show one with another outcome than before training.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show the text of every forecast.")] = False,
    critique: Annotated[
        bool, typer.Option("--critique", help="NLAC: show which part of the improvement is weak.")
    ] = False,
    ledger: Annotated[bool, typer.Option("--ledger", hidden=True)] = False,  # its old name
    as_json: AsJson = False,
) -> None:
    """Show an episode turn by turn with the texts of its critic, or NLAC's critique accuracy."""
    from agentrl_cli.report import episode as episodes
    from agentrl_cli.report.summary import critique_accuracy, critique_table
    from agentrl_cli.runs.find import find_run

    if won and lost:
        raise UserError("--won and --lost exclude each other; give one of them", code="conflict")
    filters = [n for n, on in zip(episodes.FILTERS, (won, lost, changed), strict=True) if on]
    source = find_run(run)
    if critique or ledger:
        if episode or filters:
            line = "--critique shows no episode; give it alone or with --step"
            raise UserError(line, code="conflict")
        found = critique_accuracy(source, step)
        echo(json.dumps(found) if as_json else "\n".join(critique_table(found)))
        return
    match = episodes.find_episode(source, episode, step, filters)
    if as_json:
        echo(json.dumps(match.episode.to_json()))
        return
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else episodes.WIDTH
    origin = f"{source.name}, {match.file.stem}"
    lines = episodes.render(match.episode, origin, width, fold=not full)
    if is_terminal:  # the lines are safe already
        print(episodes.painted(lines), end="", flush=True)
    else:
        echo("\n".join(lines))
    ids = " ".join(entry.id for entry in match.entries[1:4])
    kind = " ".join([*filters, "episodes"])
    position = f"one of {len(match.entries)} {kind} (of {match.total}) in {match.file.stem}"
    at = "" if step is None else f" --step {step}"
    another = f"agentrl show {source.quoted_folder}{at} --episode ID"
    echo(f"{position}; show another: {another}, such as {ids or '...'}", err=True)


@app.command(epilog=help_examples.REPORT)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FOLDER...", help="Runs, or a sweep.", autocompletion=completion.runs
        ),
    ],
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Show differences from this run's group.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Success to reach, such as 0.4; default halfway from base to best."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.")] = None,
    pages: Annotated[
        bool, typer.Option("--pages", help="Also write a page per run with all episodes.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Also show the log-prob of every token.")
    ] = False,
    as_zip: Annotated[
        bool, typer.Option("--zip", help="Also pack all pages into one file.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs in a table with intervals and an HTML page with curves and episodes."""
    from agentrl_cli.report.compare import gather, markdown, render
    from agentrl_cli.report.page import folder_for, pack, write

    if as_json and as_markdown:
        line = "--json and --markdown exclude each other; give one of them"
        raise UserError(line, code="conflict")
    comparison = gather(runs, against, threshold)
    for note in comparison.notes:
        echo(note, err=True)
    text = markdown(comparison) if as_markdown else render(comparison)
    typer.echo(json.dumps(comparison.to_json()) if as_json else text)
    if (as_json or as_markdown) and not (out or pages or logprobs or as_zip):
        return
    folder = out or folder_for(runs)
    echo(f"page: {write(comparison, folder, pages or as_zip, logprobs)}", err=True)
    if as_zip:
        echo(f"packed: {pack(comparison, folder)}", err=True)


@app.command(epilog=help_examples.LS)
def ls(
    folder: Annotated[Path, typer.Argument(help="A folder with runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, oldest first, and the folders of runs inside it."""
    from agentrl_cli.report.summary import run_row, runs_table, table
    from agentrl_cli.runs.find import RUNS, folders_of_runs, list_runs

    if not files.is_folder(folder) and (folder != RUNS or folder.exists()):
        raise UserError(f"'{folder}' is not a folder; name one with runs in it", code="no-folder")
    rows, folders = [run_row(run) for run in list_runs(folder)], folders_of_runs(folder)
    for row in rows:
        if row["lost"]:
            line = f"run '{row['run']}': skipped {row['lost']} unreadable lines of metrics.jsonl"
            echo(line, err=True)
    inside = [["folder", "runs"], *([str(path), str(count)] for path, count in folders.items())]
    tables = [*([runs_table(rows)] if rows else []), *([table(inside)] if folders else [])]
    if as_json:
        echo(json.dumps(rows))
    elif tables:
        echo("\n\n".join(map("\n".join, tables)))
    else:
        echo(f"no runs in '{folder}'; start one with agentrl train", err=True)


@app.command("list", epilog=help_examples.LIST)
def list_options(
    group: Annotated[
        str | None, typer.Argument(help=GROUPS, autocompletion=completion.group_names)
    ] = None,
    option: Annotated[
        str | None, typer.Argument(help="Show its keys.", autocompletion=completion.option_names)
    ] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """List the groups, what there is to choose in one, or the keys of one option."""
    from agentrl_cli.config.groups import groups, options
    from agentrl_cli.config.suggestions import nearest

    known = groups(config_dir)
    if group is None:
        echo(json.dumps(known) if as_json else "\n".join(known))
        return
    if group not in known:
        raise UserError(f"group '{group}' not found{nearest(group, known)}")
    if option is not None:
        from agentrl_cli.config.comments import option_settings

        _print_settings(option_settings(group, option, config_dir), as_json)
        return
    comments = options(group, config_dir)
    width = max(map(len, comments), default=0)
    lines = [f"{name:<{width}}  {text}".rstrip() for name, text in comments.items()]
    echo(json.dumps(comments) if as_json else "\n".join(lines))


@app.command("config", epilog=help_examples.CONFIG)
def print_config(
    overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False
) -> None:
    """Print what a run would be configured with: every key, its meaning, and who set it."""
    show_config(overrides or [], config_dir, as_json)


@app.command("check", epilog=help_examples.CHECK)
def check_environment(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Test the contract of an environment, two agents in it, and token limits."""
    from agentrl_cli.cli.check import check_command

    check_command(overrides or [], config_dir)


def show_config(overrides: list[str], config_dir: Path | None, as_json: bool = False) -> None:
    """Print the composed configuration, then refuse what is wrong with it."""
    from agentrl_cli.config.comments import settings
    from agentrl_cli.config.compose import check, compose

    _print_settings(settings(overrides, config_dir), as_json)
    check(compose(overrides, config_dir))


def _print_settings(found: Settings, as_json: bool) -> None:
    from agentrl_cli.config.comments import render

    rows = [asdict(entry) for entry in found.entries]
    echo(json.dumps(rows) if as_json else "\n".join(render(found)))


@app.command(  # an answer may be -7
    epilog=help_examples.GRADE, context_settings={"ignore_unknown_options": True}
)
def grade(
    gold: Annotated[str, typer.Argument(metavar="GOLD", help="The correct answer.")],
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="An answer, or a whole reply.")],
    extract: Annotated[str, typer.Option(help="boxed, or last_math as in math-verify.")] = "boxed",
    tolerance: Annotated[float, typer.Option(help="Relative error of decimals.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Grade an answer as env=math does; exits with 0 for any grade."""
    from agentrl_cli.envs.math import grade as grade_answer

    mark = grade_answer(answer, gold, cast(Any, extract), tolerance)
    fields = json.dumps({"correct": mark.correct, "reason": mark.reason})
    echo(fields if as_json else f"{'right' if mark.correct else 'wrong'} ({mark.reason})")
