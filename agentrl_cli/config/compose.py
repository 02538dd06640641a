"""From YAML groups and overrides to one checked configuration, and from its nodes to objects. Hydra
composes and knows the override grammar; `check` reads everything against the dataclasses that will
be built and reports all mistakes together. What a value means is not known here."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_cli.config.secrets import REMEDY, secret_errors, secret_in
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

T = TypeVar("T")
PACKAGE = Path(__file__).parents[1]
ADDED_KEYS = {"save_minutes": 0.0}  # with what it means where a run was stored before there was one
EVAL_GROUP = "search"  # the group that is chosen when a run is evaluated


def conf_folder() -> Path:
    """The folder of the groups: `./conf` where it has algorithms (another program's has none), else
    the package's own, else the repository's."""
    for folder in (Path("conf"), PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "algo").is_dir():
            return folder.resolve()
    raise UserError("no conf/config.yaml found; install agentrl again, or run it where one is")


def groups(config_dir: Path | None = None) -> list[str]:
    """The names of all groups, a user's own included."""
    folders = [folder for root in _conf_folders(config_dir) for folder in root.iterdir()]
    return sorted({folder.name for folder in folders if folder.is_dir()})


def options(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """The options of a group, each with the comment its file opens with."""
    folders = [root / group for root in _conf_folders(config_dir)]
    found = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    return {file.stem: _opening_comment(file) for file in found}


def compose(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """The groups and overrides as one configuration, yet unchecked; `choices` says what was chosen.
    Unknown options are refused together with all other mistakes of the command."""
    _conf_folders(config_dir)
    parsed = parse_overrides(overrides)
    lines = {item.key_or_group: _unknown_option(item, config_dir) for item in parsed}
    wrong = {group: line for group, line in lines.items() if line}
    kept = [item for item in parsed if item.key_or_group.partition(".")[0] not in wrong]
    cfg = compose_with_hydra([forced(item, config_dir) for item in kept], config_dir)
    if wrong:
        raise UserError("\n".join([*wrong.values(), *_validate(cfg)[1]]))
    return cfg


def load(file: Path, overrides: list[str]) -> DictConfig:
    """The configuration that a run has stored, with overrides of single values and of `search`."""
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
    for key, value in ADDED_KEYS.items():
        if key not in cfg:
            cfg[key] = value
    parsed = parse_overrides(overrides)
    for item in sorted(parsed, key=lambda item: item.key_or_group != EVAL_GROUP):
        if item.key_or_group == EVAL_GROUP:
            _choose_eval_group(cfg, str(item.input_line), file)
        elif item.key_or_group in groups():
            raise UserError(f"'{item.input_line}' chooses a group; leave it or --config out")
        else:
            OmegaConf.update(cfg, item.key_or_group, item.value(), merge=True, force_add=True)
    return cfg


def _choose_eval_group(cfg: DictConfig, override: str, file: Path) -> None:
    """Put the option that the override names, and its node, into a stored configuration."""
    from omegaconf import OmegaConf

    stored: Any = OmegaConf.to_container(cfg)
    if not isinstance(stored.get("choices"), dict):
        line = f"configuration '{file}' does not say what was chosen"
        raise UserError(f"{line}; name the config.yaml of a run")
    composed = compose([override])
    cfg[EVAL_GROUP] = composed[EVAL_GROUP] if EVAL_GROUP in composed else None
    cfg.choices[EVAL_GROUP] = composed.choices[EVAL_GROUP]


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


def check(cfg: DictConfig, skip: Container[str] = ()) -> DictConfig:
    """The same configuration, resolved, every value of its declared type. Raises one UserError with
    one line for each mistake. Root nodes named in `skip` are left out, so that their classes need
    not be imported."""
    from omegaconf import OmegaConf

    values, errors = _validate(cfg, skip)
    if errors:
        raise UserError("\n".join(errors))
    checked = OmegaConf.create(values)
    OmegaConf.set_struct(checked, True)
    return checked


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


def _validate(cfg: DictConfig, skip: Container[str] = ()) -> tuple[dict[str, Any], list[str]]:
    from agentrl_cli.config.schema import needed_nodes, to_plain, validate
    from agentrl_cli.config.settings import Settings, wrong_limits

    errors: list[str] = []
    values = {key: value for key, value in _resolve(cfg, errors).items() if key not in skip}
    errors += secret_errors(values)
    checked = to_plain(validate(Settings, values, "", errors, not_required=cfg))
    nodes = [key for key in needed_nodes(Settings) if key not in cfg and key not in skip]
    remedy = "choose one with {0}=NAME (agentrl list {0})"
    errors += [f"{key} is missing; {remedy.format(key)}" for key in nodes]
    return checked, errors + ([] if errors else wrong_limits(checked))


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
            errors.append(f"{key} cannot be resolved: {_reason(error)}")
    return values


def parse_overrides(overrides: list[str], *, is_sweep: bool = False) -> list[Override]:
    """Read `key=value` overrides; those of a sweep may name several values. Raises one UserError
    with one line for each mistake."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parsed, errors = [], []
    form = "key=value or key=a,b" if is_sweep else "key=value"
    for text in overrides:
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
    if errors:
        raise UserError("\n".join(errors))
    return parsed


def _unknown_option(item: Override, config_dir: Path | None) -> str | None:
    from agentrl_cli.config.schema import nearest

    group, value = item.key_or_group, item.value()
    known = options(group, config_dir)
    if group not in groups(config_dir) or str(value) in known or item.is_delete():
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
    from omegaconf import open_dict
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    unreadable = (
        HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError,
    )  # fmt: skip
    overrides = search_path(config_dir) + overrides
    try:
        with hydra.initialize_config_dir(str(conf_folder()), version_base=None):
            cfg = hydra.compose("config", overrides, return_hydra_config=True)
    except unreadable as error:
        raise UserError(f"the configuration cannot be composed: {_reason(error)}") from None
    options_of = cfg.hydra.runtime.choices
    with open_dict(cfg):
        named = [group for group in groups(config_dir) if group in options_of]
        cfg.choices = {group: options_of[group] for group in named}
        del cfg["hydra"]
    return cfg


def _conf_folders(config_dir: Path | None) -> list[Path]:
    if config_dir is not None and not files.is_folder(config_dir):
        raise UserError(f"--config-dir '{config_dir}' is not a folder; name one that holds groups")
    return [conf_folder(), *([config_dir] if config_dir else [])]


def _opening_comment(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    return lines[0].lstrip("# ").strip() if lines and lines[0].startswith("#") else ""


def _reason(error: Exception) -> str:
    """The first line of an error; of one in YAML, which ends with its place, all as one line."""
    from yaml import MarkedYAMLError

    lines = str(error).split("\n") if isinstance(error, MarkedYAMLError) else _lines(error)[:1]
    return " ".join(line.strip() for line in lines)


def _lines(error: Exception) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
