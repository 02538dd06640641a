"""Compose YAML groups and overrides to one checked configuration, and build objects from its nodes.

Hydra composes. `check` validates everything at once, and reports all mistakes together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_cli.config.groups import (
    ALGOS,
    conf_folder,
    group_folders,
    groups,
    options,
    register_sections,
)
from agentrl_cli.config.presets import PRESETS, replace_old_names
from agentrl_cli.config.renames import update_stored
from agentrl_cli.config.secrets import REMEDY, secret_errors, secret_in
from agentrl_cli.config.suggestions import nearest
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

    from agentrl_cli.config.validation import Mistake

T = TypeVar("T")
NOT_CHOSEN = re.compile(r"Interpolation key 'choices\.\w+' not found")
SEARCH, ENV, HARDWARE = "search", "env", "hardware"
EVAL_GROUPS = (SEARCH, ENV, HARDWARE)  # that may be chosen when a run is evaluated


def compose(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """Return the groups and overrides as one configuration, not checked yet. Its `choices` record
    the chosen options. Raises UserError for unknown options, with all other mistakes."""
    group_folders(config_dir)
    parsed = parse_overrides(overrides)
    lines = {item.key_or_group: _unknown_option(item, config_dir) for item in parsed}
    wrong = {group: line for group, line in lines.items() if line}
    kept = [item for item in parsed if item.key_or_group.partition(".")[0] not in wrong]
    cfg = compose_with_hydra([forced(item, config_dir) for item in kept], config_dir)
    if wrong:
        _, mistakes = _validated(cfg)
        others = [mistake.line() for mistake in mistakes]
        raise UserError("\n".join([*wrong.values(), *others]), code="unknown-option")
    return cfg


def compose_checked(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """Compose and check a configuration."""
    return check(compose(overrides, config_dir))


def load(
    file: Path,
    overrides: list[str],
    *,
    choosable: Collection[str] = (SEARCH,),
    config_dir: Path | None = None,
) -> DictConfig:
    """Return the stored configuration of a run, with its keys renamed as in this version.

    Overrides may set single values, and choose options of the groups in `choosable`. Raises
    UserError for a file that is not a configuration, and for an override of another group.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    remedy = "give the config.yaml of a run"
    try:
        stored = OmegaConf.load(file)
        plain: Any = OmegaConf.to_container(stored, resolve=False)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        line = f"configuration '{file}' cannot be read ({_reason(error)}); {remedy}"
        raise UserError(line, code="unreadable-configuration") from None
    if not isinstance(stored, DictConfig):
        line = f"configuration '{file}' is not a mapping; {remedy}"
        raise UserError(line, code="unreadable-configuration")
    _refuse_earlier_version(plain, file)
    _refuse_resolvers(plain, file)
    cfg = OmegaConf.create(update_stored(plain))
    parsed, known = parse_overrides(overrides), groups(config_dir)
    for item in sorted(parsed, key=lambda item: item.key_or_group not in choosable):
        if item.key_or_group in choosable:
            _choose_group(cfg, item, file, config_dir)
        elif item.key_or_group in known:
            line = f"'{item.input_line}' chooses a group, but '{file}' is a complete configuration"
            raise UserError(f"{line}; start a new run with it", code="group-of-stored")
        else:
            OmegaConf.update(cfg, item.key_or_group, item.value(), merge=True, force_add=True)
    return cfg


def _choose_group(cfg: DictConfig, item: Override, file: Path, config_dir: Path | None) -> None:
    """Put an option into a stored configuration. An environment comes with its rollout sizes, or
    with those of the run's model."""
    from omegaconf import OmegaConf

    stored: Any = OmegaConf.to_container(cfg)
    if not isinstance(stored.get("choices"), dict):
        line = f"configuration '{file}' has no choices; give the config.yaml of a run"
        raise UserError(line, code="no-choices")
    group, model = item.key_or_group, stored["choices"].get("model")
    same_model = [f"model={model}"] if model in options("model", config_dir) else []
    composed = compose([*same_model, str(item.input_line)], config_dir)
    for node in (group, "rollout") if group == ENV else (group,):
        cfg[node] = composed[node] if node in composed else None
        if node in composed.choices:
            cfg.choices[node] = composed.choices[node]


def _refuse_earlier_version(stored: Any, file: Path) -> None:
    """Raise UserError if the targets of a configuration name files, as before version 0.2."""
    ours = [target for target in _targets(stored) if target.startswith("agentrl_cli.")]
    if any(target.count(".") > 2 for target in ours):
        run = file.parent
        steps = sorted(run.glob("checkpoints/step-*")) or [run / "checkpoints" / "STEP"]
        raise UserError(
            f"configuration '{file}' was written before version 0.2; train from its weights with "
            f"init={run}, or evaluate them with model=hf "
            f"model.path={steps[-1] / 'models' / 'policy'} and the same env",
            code="earlier-version",
        )


def _refuse_resolvers(stored: Any, file: Path) -> None:
    """Raise UserError if a stored configuration calls a resolver, for example to read a variable of
    the environment. Runs store only values, so somebody else wrote it."""
    flat = files.flatten(stored)
    found = [key for key, value in flat.items() if ":" in str(value).partition("${")[2]]
    if found:
        line = f"configuration '{file}' calls a resolver in {found[0]}"
        raise UserError(f"{line}; write the value itself", code="resolver")


def _targets(node: Any) -> Iterator[str]:
    """Yield every `_target_` in a nested node."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and "_target_" in node:
        yield str(node["_target_"])
    for part in inner:
        yield from _targets(part)


def chosen_option(cfg: DictConfig, group: str) -> str | None:
    """Return the option of a group that a configuration was composed with, if any."""
    return cfg.choices[group] if group in cfg.choices else None


def check(cfg: DictConfig, skip: Collection[str] = ()) -> DictConfig:
    """Return the same configuration, resolved, with every value of its declared type.

    Root nodes named in `skip` are left out. Raises one UserError with one line for each mistake.
    No class of this package that needs torch is imported.
    """
    from omegaconf import OmegaConf

    from agentrl_cli.config.validation import raise_mistakes

    values, mistakes = _validated(cfg, skip)
    raise_mistakes(mistakes)
    checked = OmegaConf.create(values)
    OmegaConf.set_struct(checked, True)
    return checked


def build(node: Any, **injected: Any) -> Any:
    """Build the class that `_target_` names from the node's values and the injected ones, which win
    over the node. Raises UserError with one line for each mistake in the node."""
    from agentrl_cli.config.validation import (
        construct,
        raise_mistakes,
        target_class,
        validate_target,
    )

    values, path = _plain_node(node)
    if "_target_" not in values:
        line = f"{path} has no _target_; name the class that it configures"
        raise UserError(line, code="unknown-target")
    mistakes: list[Mistake] = []
    given = {key: value for key, value in values.items() if key not in injected}
    typed = validate_target(given, mistakes, (path,), injected)
    raise_mistakes(mistakes)
    return construct(target_class(values["_target_"]), typed, **injected)


def as_dataclass(node: Any, schema: type[T]) -> T:
    """Return a node without `_target_` as its dataclass."""
    from agentrl_cli.config.validation import construct, raise_mistakes, validate

    values, path = _plain_node(node)
    mistakes: list[Mistake] = []
    typed = validate(schema, values, mistakes, (path,))
    raise_mistakes(mistakes)
    return construct(schema, typed)


def _plain_node(node: Any) -> tuple[dict[str, Any], str]:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig):
        return dict(node), "node"
    path = str(node._get_full_key(None)) or "node"
    try:
        return OmegaConf.to_container(node, resolve=True), path  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        line = f"{path} cannot be resolved: {_reason(error)}"
        raise UserError(line, code="unresolved") from None


def _validated(cfg: DictConfig, skip: Collection[str] = ()) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the typed values of a configuration and all of its mistakes."""
    from agentrl_cli.config.settings import Settings, check_together
    from agentrl_cli.config.validation import Mistake, settings_mistakes, validate, without_missing

    mistakes: list[Mistake] = []
    values = _resolve(cfg, mistakes)
    unresolved = {str(key) for key in cfg} - values.keys()
    values = {key: value for key, value in values.items() if key not in skip}
    values = without_missing(values, mistakes)
    mistakes += [Mistake((), line, "secret") for line in secret_errors(values)]
    typed = validate(Settings, values, mistakes, optional={*skip, *unresolved})
    if not mistakes:
        mistakes += [Mistake((), line, "conflicting-settings") for line in check_together(typed)]
        mistakes += settings_mistakes(typed)
    return typed, mistakes


def _resolve(cfg: DictConfig, mistakes: list[Mistake]) -> dict[str, Any]:
    """Return the root nodes with their interpolations resolved."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from agentrl_cli.config.validation import Mistake

    values: dict[str, Any] = {}
    for key in map(str, cfg):
        try:
            value: Any = "???" if OmegaConf.is_missing(cfg, key) else cfg[key]
            is_node = OmegaConf.is_config(value)
            values[key] = OmegaConf.to_container(value, resolve=True) if is_node else value
        except OmegaConfBaseException as error:
            if not NOT_CHOSEN.search(_reason(error)):  # reported as a missing group
                text = f"{key} cannot be resolved: {_reason(error)}"
                mistakes.append(Mistake((key,), text, "unresolved"))
    return values


def parse_overrides(overrides: list[str], *, is_sweep: bool = False) -> list[Override]:
    """Read `key=value` overrides; those of a sweep may name several values. Raises one UserError
    with one line for each mistake."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parsed, errors = [], []
    form = "key=value or key=a,b" if is_sweep else "key=value"
    for text in replace_old_names(overrides):
        if kind := secret_in(text):
            errors.append(f"an override of '{text.partition('=')[0]}' holds {kind}; {REMEDY}")
            continue
        try:
            item = OverridesParser.create().parse_override(text)
            parsed.append(item)
        except (HydraException, ValueError, RecursionError):
            errors.append(f"override '{text}' cannot be read; write it as {form}")
            continue
        if item.is_sweep_override() and not is_sweep:
            errors.append(f"override '{text}' names several values; give one, or a list as [a,b]")
        errors += _foreign(item, is_sweep)
    if errors:
        raise UserError("\n".join(errors))
    return parsed


def _foreign(item: Override, is_sweep: bool) -> list[str]:
    """A line for an override of what is not set so: what the groups' names say, and, outside of a
    sweep, what is Hydra's own."""
    root = re.split(r"[./]", item.key_or_group, maxsplit=1)[0]
    if root == "choices":
        remedy = "choose with GROUP=NAME, like algo=grpo"
        return [f"'{item.input_line}' sets what is only a record of the chosen groups; {remedy}"]
    if root == "hydra" and not is_sweep:
        return [f"'{item.input_line}' is for Hydra, which only agentrl sweep asks; leave it out"]
    return []


def _unknown_option(item: Override, config_dir: Path | None) -> str | None:
    group, value = item.key_or_group, item.value()
    known = options(group, config_dir)
    if group == "experiment":
        known |= dict.fromkeys(PRESETS, "")
    elif group not in groups(config_dir):
        return None
    if str(value) in known or item.is_delete():
        return None
    if value is None:
        remedy = f"choose one with {group}=NAME (agentrl list {group}), or leave it out"
        return f"'{item.input_line}' chooses nothing; {remedy}"
    return f"{group} '{value}' not found{nearest(str(value), known)}"


def forced(item: Override, config_dir: Path | None) -> str:
    """The override in the form in which Hydra takes unknown keys, so that `check` can report all of
    them."""
    text = item.input_line or ""
    is_plain = text[0] not in "+~" and item.key_or_group not in groups(config_dir)
    return f"++{text}" if is_plain else text


def search_path(config_dir: Path | None) -> list[str]:
    """The override that lets Hydra find a user's own groups: a path, nothing percent-encoded."""
    return [f"hydra.searchpath=['file://{config_dir.resolve()}']"] if config_dir else []


def compose_with_hydra(overrides: list[str], config_dir: Path | None) -> DictConfig:
    """The groups and overrides as one configuration, Hydra's own nodes checked too."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    unreadable = (
        HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError,
    )  # fmt: skip
    overrides = search_path(config_dir) + overrides
    try:
        register_sections(config_dir)
        with hydra.initialize_config_dir(str(conf_folder()), version_base=None):
            cfg = hydra.compose("config", overrides, return_hydra_config=True)
    except unreadable as error:
        line = f"the configuration cannot be composed: {_reason(error)}"
        if "/wording" in line or "'wording@" in line:  # as in files of environments before 0.3
            line += "; start the file with # @package _global_ and write prompts: {wording: NAME}"
        raise UserError(line, code="cannot-compose") from None
    complete(cfg, cfg.hydra.runtime.choices, config_dir)
    return cfg


def complete(
    cfg: DictConfig, options_of: Mapping[str, str | None], config_dir: Path | None
) -> None:
    """Make of what Hydra composed a configuration of ours: what was chosen, of our groups and a
    user's own, becomes its `choices`, and texts stand where they are named."""
    from omegaconf import open_dict

    named = [group for group in groups(config_dir) if group in options_of]
    with open_dict(cfg):
        cfg.choices = {group: options_of[group] for group in named}
        for node in ("algo", "rollout"):  # a node of a collector may hold an algorithm's
            _put_prompts(cfg.get(node))
        for key in ("hydra", ALGOS, "prompts"):
            cfg.pop(key, None)


def _put_prompts(holder: Any) -> None:
    """Replace references to the group `prompts` in a node by their texts, so that the node records
    everything that an algorithm reads."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    plain: Any = OmegaConf.to_container(holder, resolve=False) if OmegaConf.is_dict(holder) else {}
    for key, value in files.flatten(plain).items():
        if isinstance(value, str) and value.startswith("${prompts."):
            with suppress(OmegaConfBaseException):  # reported when the node is resolved
                OmegaConf.update(holder, key, OmegaConf.select(holder, key))


def _reason(error: Exception) -> str:
    """What the system says, or the first line of an error; of one in YAML, which ends with its
    place, all as one line."""
    from yaml import MarkedYAMLError

    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).split("\n") if isinstance(error, MarkedYAMLError) else _lines(error)[:1]
    return " ".join(line.strip() for line in lines)


def _lines(error: Exception) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
