"""From YAML groups and overrides to one checked configuration, and from its nodes to objects. Hydra
composes and knows the override grammar; `check` reads everything against the dataclasses that will
be built and reports all mistakes together. What a value means is not known here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
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
from agentrl_cli.config.secrets import REMEDY, secret_errors, secret_in
from agentrl_cli.config.texts import add_later_keys, put_texts
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

T = TypeVar("T")
NOT_CHOSEN = re.compile(r"Interpolation key 'choices\.\w+' not found")
SEARCH, ENV, HARDWARE = "search", "env", "hardware"
EVAL_GROUPS = (SEARCH, ENV, HARDWARE)  # that may be chosen when a run is evaluated


def compose(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """The groups and overrides as one configuration, yet unchecked; `choices` says what was chosen.
    Unknown options are refused together with all other mistakes of the command."""
    group_folders(config_dir)
    parsed = parse_overrides(overrides)
    lines = {item.key_or_group: _unknown_option(item, config_dir) for item in parsed}
    wrong = {group: line for group, line in lines.items() if line}
    kept = [item for item in parsed if item.key_or_group.partition(".")[0] not in wrong]
    cfg = compose_with_hydra([forced(item, config_dir) for item in kept], config_dir)
    if wrong:
        raise UserError("\n".join([*wrong.values(), *_mistakes(cfg)]))
    return cfg


def compose_checked(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """`check` of what `compose` gives."""
    return check(compose(overrides, config_dir))


def load(
    file: Path,
    overrides: list[str],
    *,
    choosable: Collection[str] = (SEARCH,),
    config_dir: Path | None = None,
) -> DictConfig:
    """The configuration that a run has stored, with overrides of single values and with options of
    the groups named in `choosable`. Raises UserError for a file that is none, and for an override
    of another group."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        cfg = OmegaConf.load(file)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        line = f"configuration '{file}' cannot be read ({_reason(error)})"
        raise UserError(f"{line}; name the config.yaml of a run") from None
    if not isinstance(cfg, DictConfig):
        raise UserError(f"configuration '{file}' is not a mapping; name the config.yaml of a run")
    _refuse_earlier_version(cfg, file)
    _refuse_resolvers(cfg, file)
    add_later_keys(cfg)
    parsed, known = parse_overrides(overrides), groups(config_dir)
    for item in sorted(parsed, key=lambda item: item.key_or_group not in choosable):
        if item.key_or_group in choosable:
            _choose_group(cfg, item, file, config_dir)
        elif item.key_or_group in known:
            line = f"'{item.input_line}' chooses a group, which '{file}' has chosen already"
            raise UserError(f"{line}; leave it out, or start a new run with it")
        else:
            OmegaConf.update(cfg, item.key_or_group, item.value(), merge=True, force_add=True)
    return cfg


def _choose_group(cfg: DictConfig, item: Override, file: Path, config_dir: Path | None) -> None:
    """Put the option that the override names, and its node, into a stored configuration; with an
    environment comes how it is played, in sizes that fit the run's model."""
    from omegaconf import OmegaConf

    stored: Any = OmegaConf.to_container(cfg)
    if not isinstance(stored.get("choices"), dict):
        line = f"configuration '{file}' does not say what was chosen"
        raise UserError(f"{line}; name the config.yaml of a run")
    group, model = item.key_or_group, stored["choices"].get("model")
    same_model = [f"model={model}"] if model in options("model", config_dir) else []
    composed = compose([*same_model, str(item.input_line)], config_dir)
    for node in (group, "rollout") if group == ENV else (group,):
        cfg[node] = composed[node] if node in composed else None
        if node in composed.choices:
            cfg.choices[node] = composed.choices[node]


def _refuse_earlier_version(cfg: DictConfig, file: Path) -> None:
    """Raise UserError for a configuration whose targets name files, as before 0.2."""
    from omegaconf import OmegaConf

    from agentrl_cli.config.schema import is_private

    if any(map(is_private, _targets(OmegaConf.to_container(cfg)))):
        run = file.parent
        steps = sorted(run.glob("checkpoints/step-*")) or [run / "checkpoints" / "STEP"]
        raise UserError(
            f"configuration '{file}' was written before 0.2, which names things otherwise; train "
            f"from its weights with init={run}, or evaluate them with model=hf "
            f"model.path={steps[-1] / 'models' / 'policy'} and the same env"
        )


def _refuse_resolvers(cfg: DictConfig, file: Path) -> None:
    """Raise UserError where a stored configuration calls a resolver, as for environment variables:
    a run's own holds values only, so somebody else wrote it."""
    from omegaconf import OmegaConf

    flat = files.flatten(OmegaConf.to_container(cfg, resolve=False))
    found = [key for key, value in flat.items() if ":" in str(value).partition("${")[2]]
    if found:
        line = f"configuration '{file}' reads the environment, or calls another resolver, in"
        raise UserError(f"{line} {found[0]}, which no run has written; write the value itself")


def _targets(node: Any) -> Iterator[str]:
    """Every `_target_` in a nested node."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and "_target_" in node:
        yield str(node["_target_"])
    for part in inner:
        yield from _targets(part)


def chosen_option(cfg: DictConfig, group: str) -> str | None:
    """The option of a group that a configuration was composed with, if any."""
    return cfg.choices[group] if group in cfg.choices else None


def check(cfg: DictConfig, skip: Collection[str] = ()) -> DictConfig:
    """The same configuration, resolved, every value of its declared type. Raises one UserError with
    one line for each mistake. Root nodes named in `skip` are left out, so that their classes need
    not be imported; no class of ours is before all else is right."""
    from omegaconf import OmegaConf

    from agentrl_cli.config.schema import hints, to_plain, validate
    from agentrl_cli.config.settings import Settings

    check_words(cfg, skip)
    errors: list[str] = []
    values, known = _resolve(cfg, errors), hints(Settings)
    values = {key: value for key, value in values.items() if key not in skip}
    typed = validate(Settings, values, "", errors, not_required=known).values
    if errors:
        raise UserError("\n".join(errors))
    checked = OmegaConf.create({key: to_plain(typed[key]) for key in known if key in typed})
    OmegaConf.set_struct(checked, True)
    return checked


def check_words(cfg: DictConfig, skip: Collection[str] = ()) -> None:
    """Raise one UserError with one line for each mistake that can be seen without importing a class
    of this package: a key or option that there is not, a value of another type."""
    if errors := _mistakes(cfg, skip):
        raise UserError("\n".join(errors))


def build(node: Any, **injected: Any) -> Any:
    """Construct the class that `_target_` names from the node's values and the injected ones. What
    is injected wins over the node. Raises UserError with one line for each mistake of it."""
    from agentrl_cli.config.schema import validate_target

    values, path = _plain_node(node)
    if "_target_" not in values:
        raise UserError(f"{path} has no _target_; name the class it configures")
    errors: list[str] = []
    given = {key: value for key, value in values.items() if key not in injected}
    return _construct(validate_target(given, path, errors, injected), errors, injected)


def as_dataclass(node: Any, schema: type[T]) -> T:
    """A node without `_target_` as its dataclass."""
    from agentrl_cli.config.schema import validate

    values, path = _plain_node(node)
    errors: list[str] = []
    return _construct(validate(schema, values, path, errors), errors, {})


def _construct(validated: Any, errors: list[str], injected: dict[str, Any]) -> Any:
    from agentrl_cli.config.schema import construct

    if errors:
        raise UserError("\n".join(errors))
    validated.values |= injected
    return construct(validated)


def _plain_node(node: Any) -> tuple[dict[str, Any], str]:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig):
        return dict(node), "node"
    path = str(node._get_full_key(None)) or "node"
    try:
        return OmegaConf.to_container(node, resolve=True), path  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UserError(f"{path} cannot be resolved: {_reason(error)}") from None


def _mistakes(cfg: DictConfig, skip: Collection[str] = ()) -> list[str]:
    """A line for each mistake that `check_words` tells of."""
    from agentrl_cli.config.outline import outlined
    from agentrl_cli.config.schema import hints, needed_nodes, unknown_key, validate
    from agentrl_cli.config.settings import Settings, wrong_limits

    errors: list[str] = []
    whole, known = _resolve(cfg, errors), hints(Settings)
    errors += [unknown_key(key, "", known, whole) for key in whole if key not in known]
    values = {key: value for key, value in whole.items() if key not in skip}
    errors += secret_errors(values)
    values = {key: outlined(value) for key, value in values.items() if key in known}
    typed = validate(Settings, values, "", errors, not_required=cfg).values
    nodes = [key for key in needed_nodes(Settings) if key not in cfg and key not in skip]
    remedy = "choose one with {0}=NAME (agentrl list {0})"
    errors += [f"{key} is missing; {remedy.format(key)}" for key in nodes]
    return errors or wrong_limits(typed)


def _resolve(cfg: DictConfig, errors: list[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values: dict[str, Any] = {}
    for key in map(str, cfg):
        try:
            value = "???" if OmegaConf.is_missing(cfg, key) else cfg[key]
            is_node = OmegaConf.is_config(value)
            values[key] = OmegaConf.to_container(value, resolve=True) if is_node else value
        except OmegaConfBaseException as error:
            if not NOT_CHOSEN.search(_reason(error)):  # told as a missing group
                errors.append(f"{key} cannot be resolved: {_reason(error)}")
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
    from agentrl_cli.config.schema import nearest

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
        cfg.pop("hydra", None)
        cfg.pop(ALGOS, None)
        put_texts(cfg)


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
