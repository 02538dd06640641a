"""The verbs of the command line.

Results go to stdout, messages to stderr. Each verb imports its code when it is called.
Exit codes: 0 success, 1 the run failed, 2 a mistake of the user, 130 interrupted after saving.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any, Literal, cast

import typer
from typer.core import TyperGroup

from agentrl_cli import __version__
from agentrl_cli.cli import completion
from agentrl_cli.core import files
from agentrl_cli.core.errors import EpisodeError, UserError, require_at_least
from agentrl_cli.core.terminal import echo, has_lost_stdout, terminal_width, wrapped

GROUPS = "algo, env, model, hardware, recipe, ablation, ..."
EXAMPLES = (Path(__file__).parent / "examples.txt").read_text(encoding="utf-8").splitlines()
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="group=option or key=value", autocompletion=completion.overrides),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", help="A folder with your own options; can be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunRef = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A folder, a unique prefix, or last.", autocompletion=completion.runs
    ),
]


class Verbs(TyperGroup):
    """Prints a UserError, and an error of stdout, without a traceback."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line and exit."""
        try:
            try:
                return super().main(*args, **options)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            if not has_lost_stdout():
                raise
            if error.errno != errno.EPIPE:
                echo(f"the output cannot be written ({error.strerror})", err=True)
            raise SystemExit(1) from None

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


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "".join(f"  agentrl {line}\n" for line in lines)


COLUMNS = shutil.get_terminal_size().columns
HELP_WIDTH = {"terminal_width": COLUMNS - 2} if COLUMNS < 52 else {}  # Click takes 50 or more

app = typer.Typer(
    cls=Verbs,
    epilog=_examples("train algo=nlac env=twentyq", "show last"),
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], **HELP_WIDTH},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def verb(name: str, **settings: Any) -> Callable[[Any], Any]:
    """Add a verb, with its lines of examples.txt below its help."""
    lines = [line for line in EXAMPLES if line.split()[0] == name]
    epilog = _examples(*lines) if lines else None
    return app.command(name, epilog=epilog, context_settings=settings)


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
    if sys.flags.optimize > 1:
        line = "Transformers needs docstrings, which python -OO (PYTHONOPTIMIZE=2) removes"
        raise UserError(f"{line}; leave it out, or take python -O", code="no-docstrings")
    # last, so that a file in the working folder cannot replace an installed package
    sys.path += [] if os.getcwd() in sys.path else [os.getcwd()]
    # Spinning threads make a tiny model ten times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # 20000 makes two runs on two cores slow


@verb("train")
def train(
    overrides: Overrides = None,
    dry: Annotated[
        bool, typer.Option(help="Check, plan, play some episodes and train once; store nothing.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Use the config.yaml of a run.")] = None,
    cfg: Annotated[
        Literal["job"] | None, typer.Option("--cfg", help="Only print the configuration.")
    ] = None,
    config_dirs: ConfigDirs = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", hidden=True)] = False,
) -> None:
    """Train an algorithm in an environment."""
    from agentrl_cli.cli.train import start, sweep_command

    if multirun:  # of Hydra
        line = f"agentrl train makes one run; type {sweep_command(overrides or [], config_dirs)}"
        raise UserError(line, code="use-sweep")

    _exclude("--config", "--config-dir", config and config_dirs)
    _exclude("--config", "--cfg", config and cfg)
    if cfg is not None:
        print_config(overrides, config_dirs)
        return
    if not (overrides or config or dry):
        raise _nothing_chosen("train")
    start(overrides or [], config_dirs=config_dirs, dry=dry, file=config)


@verb("sweep")
def sweep_runs(
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="The folder of the runs, inside runs/.")] = None,
    jobs: Annotated[int, typer.Option(help="Number of parallel runs (joblib).")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before many runs.")] = False,
    config_dirs: ConfigDirs = None,
) -> None:
    """Train a grid of runs; those that are done are skipped."""
    from agentrl_cli.cli.sweep import summary, sweep

    require_at_least(1, **{"--jobs": jobs})
    if not overrides:
        raise _nothing_chosen("sweep", " seed=0,1,2")

    def confirm(question: str) -> bool:
        return yes or (sys.stdin.isatty() and typer.confirm(question, err=True))

    folder, points = sweep(overrides or [], config_dirs, name, jobs, confirm)
    lines, unfinished = summary(folder, points)
    echo("\n".join(lines))
    echo(f"next: agentrl report {quote(str(folder))}", err=True)
    if unfinished:
        echo(f"{unfinished} runs are not done; repeat the command to try them again", err=True)
        raise typer.Exit(1)


@verb("resume")
def resume(
    run: RunRef,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="For example steps=N, to train further.")
    ] = None,
) -> None:
    """Continue a run from its last checkpoint."""
    from agentrl_cli.cli.train import print_result
    from agentrl_cli.cli.train import resume as resume_training

    print_result(resume_training(run, overrides))


@verb("eval")
def evaluate(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|model=...",
            help="A run, or a model; then overrides.",
            autocompletion=completion.run_or_overrides,
        ),
    ],
    config_dirs: ConfigDirs = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the last or best checkpoint of a run, or a model."""
    from agentrl_cli.cli.evaluate import evaluate_command
    from agentrl_cli.runs.find import is_run

    def show(record: dict[str, Any], lines: list[str]) -> None:
        echo(json.dumps(record) if as_json else "\n".join(lines))

    is_override = "=" in what[0] and not is_run(Path(what[0]))
    ref, overrides = (None, what) if is_override else (what[0], what[1:])
    evaluate_command(ref, overrides, config_dirs, show)


@verb("play")
def play(
    overrides: Overrides = None,
    run: Annotated[str | None, typer.Option(help="Let the policy of a run play.")] = None,
    task: Annotated[str | None, typer.Option(help="The task; default a random test task.")] = None,
    script: Annotated[Path | None, typer.Option(help="Replay a file of actions.")] = None,
    config_dirs: ConfigDirs = None,
    as_json: AsJson = False,
) -> None:
    """Play one episode in the terminal; Ctrl-D stops it."""
    from agentrl_cli.cli.play import play_command

    _exclude("--run", "--config-dir", run and config_dirs)
    _exclude("--run", "--script", run and script)
    play_command(overrides or [], run, task, config_dirs, script, as_json=as_json)


@verb("export")
def export(
    run: RunRef,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A new or empty folder.")
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder for the evaluation as an Inspect log."),
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapter.")] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Then upload DIR to this repository of the Hugging Face Hub. A new one is public "
            "unless the organization's default is private.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Upload only to a private repository.")
    ] = False,
) -> None:
    """Write the policy of a run as a Hugging Face model, or its evaluation as an Inspect log."""
    from agentrl_cli.cli.export import evaluable_context, export_inspect
    from agentrl_cli.cli.export import export as export_policy
    from agentrl_cli.cli.export import push as push_folder

    _exclude("--inspect", "--push", inspect and push)
    if private and push is None:
        raise UserError("--private needs --push OWNER/NAME", code="no-repository")
    if inspect is not None and folder is None:
        file, count = export_inspect(run, inspect)
        echo(file)
        echo(f"{count} episodes; view them: inspect view --log-dir {inspect}", err=True)
    elif folder is not None and inspect is None:
        source, step = export_policy(run, folder, adapter=adapter)
        address = push is not None and push_folder(folder, push, private=private)
        echo(folder)
        if address:
            echo(address)
        if adapter:
            echo(f"the adapter of {source.name} at step {step}, for PEFT", err=True)
            return
        length, path = evaluable_context(folder), quote(f"model.path={folder}")
        limit = f" rollout.max_seq_len={length}" if length else ""
        command = f"agentrl eval model=hf {path} env={source.meta['choices']['env']}{limit}"
        echo(f"the policy of {source.name} at step {step}; try it: {command}", err=True)
    else:
        line = "give one folder: agentrl export RUN DIR, or agentrl export RUN --inspect DIR"
        raise UserError(line, code="no-folder")


@verb("serve")
def serve_model(
    overrides: Overrides = None,
    only_print: Annotated[bool, typer.Option("--print", help="Only print the command.")] = False,
    config_dirs: ConfigDirs = None,
) -> None:
    """Run a vLLM server for runs with hardware=vllm."""
    from agentrl_cli.cli.serve import serve

    serve(overrides or [], config_dirs, only_print=only_print)


@verb("demos")
def demos(overrides: Overrides = None, config_dirs: ConfigDirs = None) -> None:
    """Write expert episodes to a file: agentrl demos env=twentyq n=128 out=demos.jsonl"""
    from agentrl_cli.cli.environment import write_demos

    file, count = write_demos(overrides or [], config_dirs)
    echo(file)
    same = [text for text in overrides or [] if not text.startswith(("n=", "out=", "algo="))]
    words = [*same, "algo=sft", f"data.demos={file}", "steps=3", "algo.minibatch_tokens=2000"]
    words += [word for folder in config_dirs or () for word in ("--config-dir", str(folder))]
    echo(f"{count} episodes; learn from them: agentrl train {join(words)}", err=True)


@verb("calibrate")
def calibrate(
    overrides: Overrides = None, config_dirs: ConfigDirs = None, as_json: AsJson = False
) -> None:
    """Compare a model that answers Twenty Questions with the table of answers."""
    from agentrl_cli.cli.environment import calibration, calibration_table

    record = calibration(overrides or [], config_dirs)
    echo(json.dumps(record) if as_json else "\n".join(calibration_table(record)))


@verb("diagnose")
def diagnose(
    overrides: Overrides = None,
    critic_updates: Annotated[
        int, typer.Option(min=0, help="Updates of the critic alone, if it can.")
    ] = 12,
    policy_updates: Annotated[
        int, typer.Option(min=0, help="Updates of critic and policy after that.")
    ] = 8,
    every: Annotated[int, typer.Option(min=1, help="Updates between measurements.")] = 4,
    out: Annotated[Path, typer.Option(help="File of the picture (SVG).")] = Path("diagnose.svg"),
    config_dirs: ConfigDirs = None,
    as_json: AsJson = False,
) -> None:
    """Compare an algorithm's critic with the exact values of a small environment."""
    from agentrl_cli.cli.diagnose import diagnose, lines, write_picture

    record = diagnose(overrides or [], config_dirs, critic_updates, policy_updates, every)
    write_picture(record, out)
    echo(json.dumps(record) if as_json else "\n".join(lines(record)))


@verb("new")
def new(
    kind: Annotated[str, typer.Argument(metavar="env|algo", help="What to write.")],
    name: Annotated[str, typer.Argument(help="Of the package, in small letters.")],
) -> None:
    """Write a package with an environment or an algorithm of your own, which works as it stands."""
    from agentrl_cli.cli.new import write_package

    folder, command = write_package(kind, name)
    echo(folder)
    echo(f"install and try it: pip install -e {folder} && {command}", err=True)


@verb("reproduce")
def reproduce_preset(
    name: Annotated[str, typer.Argument(help="A preset, such as arithmetic_k1; or all.")],
    seed: Annotated[list[int] | None, typer.Option(help="All that are stored by default.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="With all: run at toy size.")] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Store the numbers in the package.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where its runs go.")] = Path("runs/reproduce"),
) -> None:
    """Run a preset and compare its result with the stored numbers."""
    from agentrl_cli.cli.reproduce import reproduce, smoke_test

    if (name == "all") != smoke:
        raise UserError("give the name of one preset, or: agentrl reproduce all --smoke")
    if smoke:
        lines, failed = smoke_test(folder / "smoke")
    else:
        lines, failed = reproduce(name, seed or [], folder, store)
    echo("\n".join(lines))
    if failed:
        raise typer.Exit(1)


# verbs that change no run


@verb("show")
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

    _exclude("--won", "--lost", won and lost)
    filters = [n for n, on in zip(episodes.FILTERS, (won, lost, changed), strict=True) if on]
    source = find_run(run)
    if critique or ledger:
        _exclude("--critique", "the choice of an episode", episode or filters)
        found = critique_accuracy(source, step)
        echo(json.dumps(found) if as_json else "\n".join(critique_table(found)))
        return
    match = episodes.find_episode(source, episode, step, filters)
    if as_json:
        echo(json.dumps(match.episode.to_json()))
        return
    width = terminal_width()
    title = f"{source.name}, {match.file.stem}"
    lines = episodes.render(match.episode, title, width or episodes.WIDTH, fold=not full)
    if width is not None:  # the lines are safe already
        print(episodes.painted(lines), end="", flush=True)
    else:
        echo("\n".join(lines))
    kind = " ".join([*filters, "episodes"])
    position = f"one of {len(match.entries)} {kind} (of {match.total}) in {match.file.stem}"
    at = "" if step is None else f" --step {step}"
    echo(position, err=True)
    if others := match.entries[1:]:
        command = f"agentrl show {source.quoted_folder}{at} --episode {quote(others[0].id)}"
        echo(f"another: {command}", err=True)
    if ends := source.meta.get("end_tokens"):
        echo(f"answers end with {', '.join(map(str, ends))}", err=True)


@verb("report")
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

    _exclude("--json", "--markdown", as_json and as_markdown)
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


@verb("ls")
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
    tables = [runs_table(rows)] if rows else []
    if folders:
        inside = [[str(path), str(count)] for path, count in folders.items()]
        tables.append(table([["folder", "runs"], *inside]))
    if as_json:
        echo(json.dumps(rows))
    elif tables:
        echo("\n\n".join(map("\n".join, tables)))
    else:
        echo(f"no runs in '{folder}'; start one with agentrl train", err=True)


@verb("list")
def list_options(
    group: Annotated[
        str | None, typer.Argument(help=GROUPS, autocompletion=completion.group_names)
    ] = None,
    option: Annotated[
        str | None, typer.Argument(help="Show its keys.", autocompletion=completion.option_names)
    ] = None,
    config_dirs: ConfigDirs = None,
    as_json: AsJson = False,
) -> None:
    """List the groups, what there is to choose in one, or the keys of one option."""
    from agentrl_cli.config.compose import groups, not_found, options

    known = groups(config_dirs)
    if group is None:
        echo(json.dumps(known) if as_json else "\n".join(known))
    elif group not in known:
        raise not_found("group", group, known)
    elif option is not None:
        from agentrl_cli.config.comments import option_settings

        _print_settings(*option_settings(group, option, config_dirs), as_json)
    else:
        found = options(group, config_dirs)
        column, width = max(map(len, found), default=0) + 2, terminal_width()
        lines = []
        for name, text in found.items():
            first, *others = wrapped(text, width, column)
            lines.append(f"{name:<{column}}{first}".rstrip())
            lines += [f"{'':<{column}}{part}" for part in others]
        echo(json.dumps(found) if as_json else "\n".join(lines))


@verb("models")
def models(
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete a model from the cache.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that were fetched or converted, with size and folder."""
    from agentrl_cli.models.fetch import PACKAGES, cached_models, remove_model
    from agentrl_cli.report.summary import table

    if remove is not None:
        echo(remove_model(remove))
        return
    found = [
        (name, sum(file.stat().st_size for file in folder.iterdir()), str(folder))
        for name, folder in cached_models().items()
    ]
    if as_json:
        keys = ("name", "bytes", "folder")
        echo(json.dumps([dict(zip(keys, row, strict=True)) for row in found]))
    elif found:
        rows = [[name, f"{size / 1e6:,.0f} MB", folder] for name, size, folder in found]
        echo("\n".join(table([["name", "size", "folder"], *rows])))
    else:
        echo(f"no models yet; model={next(iter(PACKAGES))} fetches one", err=True)


@verb("config")
def print_config(
    overrides: Overrides = None, config_dirs: ConfigDirs = None, as_json: AsJson = False
) -> None:
    """Print the configuration of a run: every key, its meaning, and who set it."""
    from agentrl_cli.config.comments import settings
    from agentrl_cli.config.compose import compose_checked

    _print_settings(*settings(overrides or [], config_dirs), as_json)
    compose_checked(overrides or [], config_dirs)  # refuse what is wrong


@verb("check")
def check_environment(overrides: Overrides = None, config_dirs: ConfigDirs = None) -> None:
    """Test the contract of an environment, two agents in it, and token limits."""
    from agentrl_cli.cli.environment import check_command

    check_command(overrides or [], config_dirs)


@verb("grade", ignore_unknown_options=True)  # an answer may be -7
def grade(
    gold: Annotated[str, typer.Argument(metavar="GOLD", help="The correct answer.")],
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help="An answer, or a whole reply.")],
    extract: Annotated[str, typer.Option(help="boxed, or last_math as in math-verify.")] = "boxed",
    tolerance: Annotated[float, typer.Option(help="Relative error of decimals.")] = 0.0,
    explain: Annotated[bool, typer.Option("--explain", help="Print how both are read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Grade an answer as env=math does; exits with 0 for any grade."""
    from agentrl_cli.envs.math import grade as grade_answer
    from agentrl_cli.envs.math.grader import explain as readings

    mark = grade_answer(answer, gold, cast(Any, extract), tolerance)
    read = readings(answer, gold, cast(Any, extract)) if explain else {}
    if as_json:
        echo(json.dumps({"correct": mark.correct, "reason": mark.reason} | read))
        return
    lines = [f"{'right' if mark.correct else 'wrong'} ({mark.reason})"]
    echo("\n".join([*lines, *(f"{name}: {text}" for name, text in read.items())]))


def _print_settings(
    rows: list[dict[str, Any]], node_comments: dict[str, str], as_json: bool
) -> None:
    from agentrl_cli.config.comments import render

    lines = render(rows, node_comments, terminal_width())
    echo(json.dumps(rows) if as_json else "\n".join(lines))


def _exclude(first: str, second: str, both: object) -> None:
    if both:
        line = f"{first} and {second} exclude each other; give one of them"
        raise UserError(line, code="conflict")


def _nothing_chosen(verb: str, more: str = "") -> UserError:
    example = f"agentrl {verb} algo=nlac env=twentyq{more}"
    line = f"nothing was started; give at least one override, for example: {example}"
    return UserError(line, code="nothing-chosen")
