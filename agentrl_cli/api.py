"""The public Python API; docs/python.md shows it in use.

The command line calls the same functions. Everything else in this package may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig as Config
from omegaconf import OmegaConf

from agentrl_cli.config import compose as configs
from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.core.types import Episode
from agentrl_cli.runs import episode_files
from agentrl_cli.runs import run as stored
from agentrl_cli.runs.checkpoints import step_of
from agentrl_cli.runs.find import find_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl_cli.algos.base import Algorithm
    from agentrl_cli.envs.base import Env

Folders = str | Path | Sequence[str | Path] | None
COMMAND = "agentrl train --config config.yaml"  # repeats a run in its folder
NOT_OF_ENV = ("algo", "hardware", "logger", "search", "eval", "data")


class Run:
    """A run in its folder. Metrics and episodes are read anew at each call."""

    def __init__(self, run: str | Path) -> None:
        """Open a run by its folder, a unique prefix of its name, or `last`. Raises UserError if
        there is none."""
        self.folder = find_run(str(run)).folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self._stored.name

    @property
    def status(self) -> str:
        """started, running, done, stopped, failed or killed. `resume` continues a run that is
        stopped or killed."""
        return self._stored.status

    @property
    def config(self) -> Config:
        """The configuration, complete and checked."""
        return configs.check(configs.load(self._stored.config_file, []))

    def metrics(self) -> Any:
        """Return the metrics with one row per step, as a pandas DataFrame, or as a list of dicts if
        pandas is not installed. Step 0 is the evaluation before training."""
        by_step: dict[int, dict[str, Any]] = {}
        for row in self._stored.metrics():
            by_step.setdefault(row["step"], {}).update(row)
        return _frame(list(by_step.values()))

    def episodes(
        self, kind: Literal["eval", "train"] = "eval", step: int | None = None
    ) -> list[Episode]:
        """Return the stored episodes of a step, by default of the last step that has some. All
        episodes of the first split of an evaluation are stored, and some of training. Raises
        UserError if there are none."""
        found = self._stored.episode_files(kind)
        chosen = [file for file in found if step in (None, step_of(file))]
        if not chosen:
            steps = ", ".join(str(step_of(file)) for file in found) or "none"
            line = f"run '{self.name}' has no {kind} episodes"
            line += "" if step is None else f" of step {step}"
            raise UserError(f"{line}; it has those of steps: {steps}", code="no-episodes")
        return episode_files.read_all(chosen[-1])

    @property
    def _stored(self) -> stored.Run:
        return stored.Run(self.folder)


class Callback:
    """Code that `train` calls. Override the methods that you need.

    `run` is set before the first call. If a method returns False, the run is saved and stops. If
    it returns a dictionary of numbers, they are logged as metrics of the step. If it raises, the
    run is saved, stops, and `train` raises UserError.
    """

    run: Run

    def on_step(self, step: int, metrics: dict[str, float]) -> bool | dict[str, float] | None:
        """Called after each update, with its metrics, and before its evaluation. Steps count from
        1."""

    def on_evaluation(self, step: int, metrics: dict[str, float]) -> bool | dict[str, float] | None:
        """Called after each evaluation, with its metrics."""


class Diagnosis:
    """The measurements of `diagnose`. Printing it shows the table of `agentrl diagnose`."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record

    def __str__(self) -> str:
        from agentrl_cli.cli.diagnose import lines

        return "\n".join(lines(self._record))

    def metrics(self) -> Any:
        """Return a row for each measurement of each arm, as a pandas DataFrame, or as a list of
        dicts if pandas is not installed."""
        arms = self._record["arms"].items()
        return _frame([{"arm": name, **row} for name, rows in arms for row in rows])

    def figure(self) -> Figure:
        """Return the picture of `agentrl diagnose`. Raises UserError without matplotlib."""
        from agentrl_cli.cli.diagnose import picture

        return picture(self._record)


def compose(
    overrides: Sequence[str] = (),
    config_dir: Folders = None,
    *,
    env: Env | None = None,
    algo: Algorithm | None = None,
) -> Config:
    """Return the configuration of a run, composed and checked as at the command line.

    `overrides` are those of `agentrl train`, such as ["algo=grpo", "env=twentyq", "steps=2"].
    `config_dir` is a folder with your own options, or several. `env` and `algo` are objects of your
    own classes, used in place of an option. Raises UserError with a line for each mistake, such as
    an unknown key.
    """
    if isinstance(overrides, str):
        line = f"overrides is the text '{overrides}'; give a list of texts"
        raise UserError(line, code="invalid-override")
    own = {group: own for group, own in (("env", env), ("algo", algo)) if own is not None}
    for group, component in own.items():
        if not is_dataclass(component) or isinstance(component, type):
            line = f"{group} is {component!r}; give an object of a class with @dataclass"
            raise UserError(line, code="not-a-component")
        if given := [text for text in overrides if re.match(rf"[+~]*{group}[.=@]", text)]:
            line = f"'{given[0]}' and the object {group} exclude each other"
            raise UserError(f"{line}; set its fields when you create it", code="conflict")
    config = configs.compose(list(overrides), _paths(config_dir))
    for group, component in own.items():
        config[group] = configs.component_node(component)
        config.choices[group] = type(component).__name__
    return configs.check(config)


def train(config: Config, callbacks: Iterable[Callback] = ()) -> Run:
    """Train a new run. Progress is printed to stderr.

    Ctrl-C completes the step, saves the run and raises KeyboardInterrupt. Raises UserError if the
    configuration is wrong, if the folder of `config.name` exists, or if a callback raises.
    """
    from agentrl_cli.cli.train import validate_new

    listener = _Callbacks(callbacks)
    cfg = _checked(config)
    validate_new(cfg)
    from agentrl_cli.cli.run_training import train_new_run

    return Run(train_new_run(cfg, COMMAND, listener=listener).folder)


def resume(
    run: Run | str, overrides: Sequence[str] = (), callbacks: Iterable[Callback] = ()
) -> Run:
    """Continue a stopped run from its last checkpoint, or train a finished one further with
    ["steps=N"]. Raises UserError if nothing is left to do, or other keys change."""
    from agentrl_cli.cli import train as training

    return Run(training.resume(_ref(run), list(overrides), _Callbacks(callbacks)).folder)


def evaluate(run: Run | str | Config, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluate the last or best checkpoint of a run, or the untrained model of a configuration.

    `overrides` change the run's settings, such as ["eval.tasks=20"]. Returns metrics
    `eval/SPLIT_NAME`; those of a run are also appended to its evaluations.jsonl.
    """
    from agentrl_cli.cli.evaluate import evaluate_command, evaluate_model

    if not isinstance(run, Config):
        return evaluate_command(_ref(run), list(overrides))
    if overrides:
        line = "evaluate takes overrides with a run only; give them to compose"
        raise UserError(line, code="conflict")
    cfg = _checked(run)
    return evaluate_model(cfg, has_algorithm=cfg.eval.act != "policy")


def compare(runs: Sequence[Run | str], against: str | None = None) -> Any:
    """Compare runs as `agentrl report`. Return a row for each configuration, as a pandas DataFrame,
    or as a list of dicts if pandas is not installed.

    `runs` are runs or folders of runs. Runs that differ only by their seed are one configuration.
    `base`, `final`, `gain` and `difference` are means over seeds with the ends of their 95 %
    intervals, such as `gain_low`; `difference` is that from the configuration or run `against`.
    Unfinished runs are left out. Raises UserError for unknown runs.
    """
    from agentrl_cli.report.compare import gather

    rows = []
    for section in gather([_ref(run) for run in runs], against).sections:
        for found in section.rows:
            row: dict[str, Any] = {"environment": section.label, "configuration": found.group}
            row |= {"seeds": found.seeds, **found.cost}
            for name in ("base", "final", "gain", "difference"):
                if (interval := getattr(found, name)) is not None:
                    row |= interval.metrics(name)
            rows.append(row)
    return _frame(rows)


def load_policy(run: Run | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the policy of a run as a plain model of Transformers, in eval mode on the CPU, and its
    tokenizer. Adapters are merged. Raises UserError if an adapter cannot be merged."""
    from agentrl_cli.cli import export

    return export.load_policy(_ref(run))


def make_env(name: str, config_dir: Folders = None, **settings: Any) -> Env:
    """Return an environment, with its settings changed: make_env("twentyq", max_turns=5). A setting
    that names a function takes the function, too: make_env("prompts", reward=score, …).

    Raises UserError for an unknown name or setting.
    """
    known = configs.options("env", _paths(config_dir))
    if name not in known:
        raise configs.not_found("env", name, known)
    cfg = configs.compose([f"env={name}"], _paths(config_dir))
    for key, value in settings.items():
        OmegaConf.update(cfg.env, key, configs.plain_value(key, value), force_add=True)
    return configs.build(configs.check(cfg, skip=NOT_OF_ENV).env)


def check_env(env: Env) -> None:
    """Test the contract of an environment, as `agentrl check`. Raises UserError with a line for
    each violation."""
    from agentrl_cli.cli.environment import check_contract
    from agentrl_cli.envs.base import Env as Interface

    if not isinstance(env, Interface):
        line = f"{env!r} is not an object of a class derived from agentrl_cli.envs.base.Env"
        raise UserError(f"{line}; give make_env(NAME) or your own", code="not-an-env")
    check_contract(env)


def diagnose(
    overrides: Sequence[str] = (),
    config_dir: Folders = None,
    *,
    critic_updates: int = 12,
    policy_updates: int = 8,
    every: int = 4,
) -> Diagnosis:
    """Compare the critic of an algorithm with exact values, as `agentrl diagnose`.

    `overrides` choose it, such as ["algo=self_ac"]. The first `critic_updates` train the critic
    alone, if the algorithm can, the next `policy_updates` critic and policy. Measures before the
    first update and after each `every` updates. Raises UserError for an algorithm without a critic.
    """
    from agentrl_cli.cli.diagnose import diagnose as measure

    updates = (critic_updates, policy_updates, every)
    return Diagnosis(measure(list(overrides), _paths(config_dir), *updates))


class _Callbacks:
    """Calls the callbacks of a run, as the listener of the training loop."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        if not isinstance(callbacks, Iterable):
            callbacks = [callbacks]
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                line = f"callback {callback!r} is not an instance of agentrl_cli.Callback"
                raise UserError(f"{line}; derive its class from it", code="invalid-callback")
            for name in dir(type(callback)):
                if name.startswith("on_") and not hasattr(Callback, name):
                    line = f"callback '{type(callback).__name__}' has '{name}', which nothing calls"
                    remedy = "there are on_step and on_evaluation"
                    raise UserError(f"{line}; {remedy}", code="invalid-callback")

    def __call__(self, run: stored.Run, method: str, step: int, metrics: dict[str, float]) -> bool:
        """Return whether training goes on. Raises RunAborted if a callback raises."""
        answers = []
        for callback in self.callbacks:
            callback.run = Run(run.folder)
            try:
                answer = getattr(callback, method)(step, dict(metrics))
                if isinstance(answer, dict):
                    run.log(step, _new_metrics(answer))
                answers.append(answer is None or isinstance(answer, dict) or answer)
            except Exception as error:
                name, reason = type(callback).__name__, f"{type(error).__name__}: {error}"
                line = f"callback '{name}' failed in {method} at step {step} ({reason})"
                raise RunAborted(line, code="callback") from error
        return all(answers)


def _new_metrics(found: dict[Any, Any]) -> dict[str, float]:
    """Return the metrics of a callback. Raises ValueError for a name that is reserved, or a value
    that is not a number."""
    for name, value in found.items():
        if not isinstance(name, str) or name.startswith(("eval/", "time/")):
            raise ValueError(f"{name!r} cannot name a metric; begin it with a word of your own")
        if not isinstance(value, Real):
            raise ValueError(f"the metric {name!r} is {value!r}, not a number")
    return {name: float(value) for name, value in found.items()}


def _checked(config: Config) -> Config:
    """Return a copy, checked again, since its values may have been changed."""
    if not isinstance(config, Config):
        line = f"{config!r} is not a configuration; give one of compose or of run.config"
        raise UserError(line, code="not-a-config")
    return configs.check(config)


def _frame(rows: list[dict[str, Any]]) -> Any:
    """Return a DataFrame, or the rows if pandas is not installed."""
    return rows if find_spec("pandas") is None else import_module("pandas").DataFrame(rows)


def _paths(folders: Folders) -> list[Path]:
    given = [folders] if isinstance(folders, str | Path) else folders or []
    return [Path(folder) for folder in given]


def _ref(run: Run | str) -> str:
    return str(run.folder if isinstance(run, Run) else run)
