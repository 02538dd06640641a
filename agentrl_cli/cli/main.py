"""The verbs of the command line.

Results go to stdout, messages to stderr. Each verb imports its code when it is called.
Exit codes: 0 success, 1 the run failed, 2 a mistake of the user, 130 interrupted after saving.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from agentrl_cli import __version__
from agentrl_cli.cli import completion, help_examples
from agentrl_cli.core import files
from agentrl_cli.core.errors import EpisodeError, UserError, require_at_least
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


class Cfg(StrEnum):
    """The values of --cfg, as in Hydra."""

    job = "job"


class Verbs(TyperGroup):
    """Prints a UserError without a traceback and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except EpisodeError as error:
            echo(f"the episode failed: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Verbs,
    epilog=help_examples.ALL,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(is_set: bool) -> None:
    if is_set:
        echo(f"agentrl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train and compare LLM agents beyond plain policy gradients."""
    # last, so that a file in the working folder cannot replace an installed package
    sys.path += [] if os.getcwd() in sys.path else [os.getcwd()]
    # Spinning threads make a tiny model ten times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # brief spinning avoids most wake-ups


@app.command(epilog=help_examples.TRAIN)
def train(
    overrides: Overrides = None,
    dry: Annotated[bool, typer.Option(help="Only check, plan and play four episodes.")] = False,
    config: Annotated[Path | None, typer.Option(help="Use the config.yaml of a run.")] = None,
    cfg: Annotated[Cfg | None, typer.Option("--cfg", help="Only print the configuration.")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train an algorithm in an environment."""
    from agentrl_cli.cli.train import start

    if config is not None:
        _refuse_groups(config_dir, "--config uses the configuration of a run")
    if cfg is not None:
        if config is not None:
            line = f"--cfg and --config exclude each other; '{config}' is the configuration"
            raise UserError(line, code="conflict")
        _show_config(overrides or [], config_dir)
        return
    if not (overrides or config or dry):
        _say_what_would_start("train", config_dir)
    start(overrides or [], config_dir=config_dir, dry=dry, file=config)


@app.command("sweep", epilog=help_examples.SWEEP)
def sweep_runs(
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="The folder of the runs, inside runs/.")] = None,
    jobs: Annotated[int, typer.Option(help="Number of parallel runs (joblib).")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before many runs.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Train a grid of runs, without those that are done."""
    from agentrl_cli.cli.sweep import summary, sweep

    require_at_least(1, **{"--jobs": jobs})
    if not overrides:
        _say_what_would_start("sweep", config_dir, "seed=0,1,2")

    def ask(question: str) -> bool:
        return yes or (sys.stdin.isatty() and typer.confirm(question, err=True))

    folder, points = sweep(overrides or [], config_dir, name, jobs, ask)
    lines, unfinished = summary(folder, points)
    echo("\n".join(lines))
    echo(f"next: agentrl report {quote(str(folder))}", err=True)
    if unfinished:
        echo(f"{unfinished} runs are not done; repeat the command to try them again", err=True)
        raise typer.Exit(1)


@app.command(epilog=help_examples.RESUME)
def resume(
    run: RunRef,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="For example steps=N, to train further.")
    ] = None,
) -> None:
    """Continue a run from its last checkpoint."""
    from agentrl_cli.cli.train import resume as resume_training

    resume_training(run, overrides)


@app.command("eval", epilog=help_examples.EVAL)
def evaluate(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|model=...",
            help="A run, or a model; then overrides.",
            autocompletion=completion.run_or_overrides,
        ),
    ],
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the last checkpoint of a run, or a model."""
    from agentrl_cli.cli.evaluate import evaluate_command
    from agentrl_cli.runs.find import is_run

    is_override = "=" in what[0] and not is_run(Path(what[0]))
    ref, overrides = (None, what) if is_override else (what[0], what[1:])

    def show(record: dict[str, Any]) -> None:
        _print_record(record, as_json)

    evaluate_command(ref, overrides, config_dir, show)


@app.command(epilog=help_examples.PLAY)
def play(
    overrides: Overrides = None,
    run: Annotated[str | None, typer.Option(help="Let the policy of a run play.")] = None,
    task: Annotated[str | None, typer.Option(help="The task; default a random test task.")] = None,
    script: Annotated[Path | None, typer.Option(help="Replay a file of actions.")] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Play one episode in the terminal; Ctrl-D stops it."""
    from agentrl_cli.cli.play import play_command

    if run is not None:
        _refuse_groups(config_dir, f"run '{run}' plays with its own configuration")
    if run is not None and script is not None:
        line = "--run and --script exclude each other; give one of them"
        raise UserError(line, code="conflict")
    play_command(overrides or [], run, task, config_dir, script, as_json=as_json)


@app.command(epilog=help_examples.EXPORT)
def export(
    run: RunRef,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A new or empty folder.")
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder for the last evaluation as an Inspect log."),
    ] = None,
) -> None:
    """Write the policy of a run as a Hugging Face model, or its evaluation as an Inspect log."""
    if (folder is None) == (inspect is None):
        line = "give one folder: agentrl export RUN DIR, or agentrl export RUN --inspect DIR"
        raise UserError(line, code="no-folder")
    if inspect is not None:
        from agentrl_cli.cli.export_inspect import export_inspect

        file, count = export_inspect(run, inspect)
        echo(file)
        echo(f"{count} episodes; view them: inspect view --log-dir {inspect}", err=True)
        return
    from agentrl_cli.runs.find import find_run

    find_run(run)  # refuse an unknown name before torch is imported
    from agentrl_cli.cli.export import evaluable_context
    from agentrl_cli.cli.export import export as export_policy

    assert folder is not None
    source, step = export_policy(run, folder)
    echo(folder)
    length, path = evaluable_context(folder), quote(f"model.path={folder}")
    limit = f" rollout.max_seq_len={length}" if length else ""
    command = f"agentrl eval model=hf {path} env={source.meta['choices']['env']}{limit}"
    echo(f"the policy of {source.name} at step {step}; try it: {command}", err=True)


@app.command("serve", epilog=help_examples.SERVE)
def serve_model(
    overrides: Overrides = None,
    only_print: Annotated[bool, typer.Option("--print", help="Only print the command.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Run a vLLM server for runs with hardware=vllm."""
    from agentrl_cli.cli.serve import serve

    serve(overrides or [], config_dir, only_print=only_print)


@app.command()
def demos(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Write expert episodes to a file: agentrl demos env=twentyq n=128 out=demos.jsonl"""
    from agentrl_cli.cli.demos import write_demos

    file, count = write_demos(overrides or [], config_dir)
    echo(file)
    same = [text for text in overrides or [] if not text.startswith(("n=", "out=", "algo="))]
    words = [*same, "algo=sft", f"data.demos={file}", "steps=3", "algo.minibatch_tokens=2000"]
    groups = ["--config-dir", str(config_dir)] if config_dir else []
    echo(f"{count} episodes; learn from them: agentrl train {join([*words, *groups])}", err=True)


@app.command(epilog=help_examples.CALIBRATE)
def calibrate(
    overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False
) -> None:
    """Compare a model that answers Twenty Questions with the table of answers."""
    from agentrl_cli.cli.calibrate import calibration, lines

    record = calibration(overrides or [], config_dir)
    echo(json.dumps(record) if as_json else "\n".join(lines(record)))


@app.command(epilog=help_examples.NEW)
def new(
    kind: Annotated[str, typer.Argument(metavar="env|algo", help="What to write.")],
    name: Annotated[str, typer.Argument(help="Of the package, in small letters.")],
) -> None:
    """Write a package with an environment or an algorithm of your own, which works as it stands."""
    from agentrl_cli.cli.new import write_package

    folder, command = write_package(kind, name)
    echo(folder)
    echo(f"install and try it: pip install -e {folder} && {command}", err=True)


@app.command("reproduce", epilog=help_examples.REPRODUCE)
def reproduce_preset(
    name: Annotated[
        str, typer.Argument(help="RECIPE_ALGO or RECIPE_ABLATION, such as math_k1; or all.")
    ],
    seed: Annotated[list[int] | None, typer.Option(help="All that are stored by default.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="With all: walk each, toy-sized.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Keep the numbers as the stored.")] = False,
    folder: Annotated[Path, typer.Option(help="Where its runs go.")] = Path("runs/reproduce"),
) -> None:
    """Run a preset and compare its result with the stored numbers."""
    from agentrl_cli.cli.reproduce import reproduce, smoke_test

    if (name == "all") != smoke:
        raise UserError("give the name of one preset, or: agentrl reproduce all --smoke")
    if smoke:
        lines, failed = smoke_test(folder / "smoke")
    else:
        reproductions = reproduce(name, seed or [], folder, store)
        lines = [reproduction.line() for reproduction in reproductions]
        failed = sum(reproduction.agrees is False for reproduction in reproductions)
    echo("\n".join(lines))
    if failed:
        raise typer.Exit(1)


# verbs that change no run


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
    from agentrl_cli.config.groups import groups, nearest, options

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
    _show_config(overrides or [], config_dir, as_json)


@app.command("check", epilog=help_examples.CHECK)
def check_environment(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Test the contract of an environment, two agents in it, and token limits."""
    from agentrl_cli.cli.check import check_command

    check_command(overrides or [], config_dir)


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


def _show_config(overrides: list[str], config_dir: Path | None, as_json: bool = False) -> None:
    """Print the composed configuration, then refuse what is wrong with it."""
    from agentrl_cli.config.comments import settings
    from agentrl_cli.config.compose import check, compose

    _print_settings(settings(overrides, config_dir), as_json)
    check(compose(overrides, config_dir))


def _print_settings(found: Settings, as_json: bool) -> None:
    from agentrl_cli.config.comments import render

    rows = [asdict(entry) for entry in found.entries]
    echo(json.dumps(rows) if as_json else "\n".join(render(found)))


def _refuse_groups(config_dir: Path | None, reason: str) -> None:
    if config_dir is not None:
        raise UserError(f"{reason}; leave --config-dir out", code="conflict")


def _say_what_would_start(verb: str, config_dir: Path | None, *more: str) -> None:
    """Print what a verb without arguments would train and how to start it; exit with 2."""
    from agentrl_cli.config.compose import compose

    cfg = compose([], config_dir)
    words = " ".join([f"algo={cfg.choices.algo}", f"env={cfg.choices.env}", *more])
    size = f"model={cfg.choices.model} on hardware={cfg.choices.hardware}, {cfg.steps} steps"
    groups = f" --config-dir {config_dir}" if config_dir else ""
    lines = [
        f"nothing was started. By default this would be {words} with {size}, in {cfg.runs}/",
        f"start that     agentrl {verb} {words}{groups}",
        f"its settings   agentrl config {' '.join(words.split()[:2])}{groups}",
        "other choices  agentrl list algo, agentrl list env, agentrl list model",
    ]
    if verb == "train":
        lines.insert(2, f"only check it  agentrl train {words} --dry{groups}")
    echo("\n".join(lines), err=True)
    raise typer.Exit(2)


def _print_record(record: dict[str, Any], as_json: bool) -> None:
    from agentrl_cli.report.summary import has_nothing_to_average

    width = max(map(len, record))
    texts = {k: f"{v:.3f}" if isinstance(v, float) else v for k, v in record.items()}
    texts |= {key: "–" for key in record if has_nothing_to_average(record, key)}
    lines = [f"{name:<{width}}  {text}" for name, text in texts.items()]
    echo(json.dumps(record) if as_json else "\n".join(lines))
