"""The verbs. Results go to stdout, talk to stderr; what a verb does is imported when it is called.
Exit codes: 0 done, 1 the run failed, 2 an impossible request, 130 interrupted after saving."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentrl_cli import __version__
from agentrl_cli.cli import completion, help_examples, read_only
from agentrl_cli.cli.read_only import AsJson, ConfigDir, Overrides, RunRef
from agentrl_cli.core.errors import EpisodeError, UserError, require_at_least
from agentrl_cli.core.terminal import echo


class Cfg(StrEnum):
    """What --cfg may print, as in Hydra."""

    job = "job"


class Verbs(TyperGroup):
    """Turns a mistake of the user into its lines and exit code 2, what broke outside into 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except EpisodeError as error:
            echo(f"the episode broke: {error}", err=True)
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
    # last, so that a file there cannot stand in for a package of ours
    sys.path += [] if os.getcwd() in sys.path else [os.getcwd()]
    # Threads that spin while they wait slow a tiny model tenfold beside any other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # a moment of it saves most wake-ups


@app.command(epilog=help_examples.TRAIN)
def train(
    overrides: Overrides = None,
    dry: Annotated[bool, typer.Option(help="Check, plan, and play four episodes only.")] = False,
    config: Annotated[Path | None, typer.Option(help="Repeat the config.yaml of a run.")] = None,
    cfg: Annotated[
        Cfg | None, typer.Option("--cfg", help="Print the configuration; start nothing.")
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Start a run: prints its folder, then one line a step."""
    from agentrl_cli.cli.train import start

    if config is not None:
        _refuse_groups(config_dir, "--config repeats a run by its own configuration")
    if cfg is not None:
        if config is not None:
            raise UserError(f"--cfg composes a configuration, and '{config}' is one; look into it")
        read_only.show_config(overrides or [], config_dir)
        return
    if not (overrides or config or dry):
        _say_what_would_start("train", config_dir)
    start(overrides or [], config_dir=config_dir, dry=dry, file=config)


@app.command("sweep", epilog=help_examples.SWEEP)
def sweep_runs(
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="The folder in runs/ to fill or go on.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side here (joblib).")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Start however many runs there are.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Train a grid of runs; what is done already is not repeated."""
    from agentrl_cli.cli.sweep import summary, sweep

    require_at_least(1, **{"--jobs": jobs})
    if not overrides:
        _say_what_would_start("sweep", config_dir, "seed=0,1,2")

    def ask(question: str) -> bool:
        return yes or (sys.stdin.isatty() and typer.confirm(question, err=True))

    folder, points = sweep(overrides or [], config_dir, name, jobs, ask)
    lines, unfinished = summary(folder, points)
    echo("\n".join(lines))
    echo(f"compare them: agentrl report {quote(str(folder))}", err=True)
    if unfinished:
        echo(f"{unfinished} not done; the same command tries these again", err=True)
        raise typer.Exit(1)


@app.command(epilog=help_examples.RESUME)
def resume(
    run: RunRef,
    overrides: Annotated[list[str] | None, typer.Argument(help="steps=N trains it further")] = None,
) -> None:
    """Go on from the last checkpoint of a run."""
    from agentrl_cli.cli.train import resume as resume_training

    resume_training(run, overrides)


@app.command("eval", epilog=help_examples.EVAL)
def evaluate(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|model=...",
            help="then overrides",
            autocompletion=completion.run_or_overrides,
        ),
    ],
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's last checkpoint, or a bare model."""
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
    run: Annotated[str | None, typer.Option(help="A trained model plays, not you.")] = None,
    task: Annotated[str | None, typer.Option(help="Which task; any test task by default.")] = None,
    script: Annotated[Path | None, typer.Option(help="Replay a file of actions.")] = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Play one episode in the terminal; end the input to stop."""
    from agentrl_cli.cli.play import play as play_episode
    from agentrl_cli.cli.play import replay_command

    if run is not None:
        _refuse_groups(config_dir, f"run '{run}' plays by its own configuration")
    if run is not None and script is not None:
        raise UserError("--run and --script both name who plays; give one of them")
    if script is None and not as_json:
        play_episode(overrides or [], run, task, config_dir)
        return
    replay_command(overrides or [], task, script, config_dir, as_json)


@app.command(epilog=help_examples.EXPORT)
def export(
    run: RunRef,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A new or an empty folder.")
    ] = None,
    inspect: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder for the last evaluation, as a log of Inspect."),
    ] = None,
) -> None:
    """Write a run's policy as a plain Hugging Face model, adapters merged, critics left out; or its
    last evaluation for the viewer of Inspect."""
    if (folder is None) == (inspect is None):
        raise UserError("give a folder for the model: agentrl export RUN DIR, or --inspect DIR")
    if inspect is not None:
        from agentrl_cli.cli.export_inspect import export_inspect

        file, count = export_inspect(run, inspect)
        echo(file)
        echo(f"{count} episodes; look at them: inspect view --log-dir {inspect}", err=True)
        return
    from agentrl_cli.runs.find import find_run

    find_run(run)  # a name that no run has, before a model is loaded
    from agentrl_cli.cli.export import evaluable_context
    from agentrl_cli.cli.export import export as export_policy

    assert folder is not None
    source, step = export_policy(run, folder)
    echo(folder)
    world, room = source.meta["choices"]["env"], evaluable_context(folder)
    limit = f" rollout.max_seq_len={room}" if room else ""
    path = quote(f"model.path={folder}")
    next_command = f"agentrl eval model=hf {path} env={world}{limit}"
    echo(f"the policy of {source.name} at step {step}; try it: {next_command}", err=True)


@app.command("serve", epilog=help_examples.SERVE)
def serve_model(
    overrides: Overrides = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command only.")] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Start a vLLM server for runs of hardware=vllm, in this terminal."""
    from agentrl_cli.cli.serve import serve

    serve(overrides or [], config_dir, only_print=only_print)


@app.command()
def demos(overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Write expert episodes of train tasks: agentrl demos env=twentyq n=128 out=demos.jsonl"""
    from agentrl_cli.cli.demos import write_demos

    file, count = write_demos(overrides or [], config_dir)
    echo(file)
    same = [text for text in overrides or [] if not text.startswith(("n=", "out=", "algo="))]
    words = [*same, "algo=sft", f"data.demos={file}", "steps=3", "algo.minibatch_tokens=2000"]
    groups = ["--config-dir", str(config_dir)] if config_dir else []
    next_command = f"agentrl train {join([*words, *groups])}"
    echo(f"{count} episodes; learn from them: {next_command}", err=True)


@app.command(epilog=help_examples.CALIBRATE)
def calibrate(
    overrides: Overrides = None, config_dir: ConfigDir = None, as_json: AsJson = False
) -> None:
    """Compare a model that answers Twenty Questions with the table, attribute by attribute."""
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


def _refuse_groups(config_dir: Path | None, reason: str) -> None:
    if config_dir is not None:
        raise UserError(f"{reason}; leave --config-dir out")


def _say_what_would_start(verb: str, config_dir: Path | None, *more: str) -> None:
    """Say on stderr what a verb without arguments would train, and how to start that; exit 2."""
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


app.add_typer(read_only.app)
