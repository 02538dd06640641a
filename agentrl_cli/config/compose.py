"""Compose YAML groups and overrides to one checked configuration, and build objects from its nodes.

Hydra composes. `check` validates everything at once, and reports all mistakes together.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_cli.config.renames import PRESETS, replace_old_names, update_stored
from agentrl_cli.config.secrets import NO_SECRETS, leaves, secret_errors, secret_in
from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

T = TypeVar("T")
ConfigDirs = Sequence[Path] | None  # folders with a user's own options
PACKAGE = Path(__file__).parents[1]
SECTIONED = ("ablation",)  # groups of one file, which has a section for each option
ALGOS = "algos"  # the key of a recipe or an ablation for values of a single algorithm
PLAIN_TEXT = re.compile(r"""\+{0,2}[\w./@-]+=[^\[{'"][^,'"\n]*""")  # a value without structure
KEY = re.compile(r"[+~]{0,2}\w")
NOT_CHOSEN = re.compile(r"Interpolation key 'choices\.\w+' not found")
MOST_CHOICES = 40  # that an error names
EVAL_GROUPS = ("search", "env", "hardware")  # that may be chosen when a run is evaluated
HYDRA = Lock()  # Hydra has one global state


# groups and their options


def conf_folder() -> Path:
    """Return `./conf` if it holds algorithms, else the package's folder, else the repository's."""
    for folder in (Path("conf"), PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "algo").is_dir():
            return folder.resolve()
    raise UserError("conf/config.yaml is missing; install agentrl again", code="no-conf")


def group_folders(config_dirs: ConfigDirs) -> list[Path]:
    """Return the folders that hold groups: ours and the user's. Raises UserError for one that is
    missing, and for an option that another folder has, too, of which Hydra would drop one."""
    folders = [conf_folder()]
    for folder in config_dirs or ():
        if not files.is_folder(folder):
            line = f"--config-dir '{folder}' is not a folder; name one with groups"
            raise UserError(line, code="no-config-dir")
        for file in sorted(folder.glob("*/*.yaml")):
            name = Path(file.parent.name, file.name)
            if other := next((known for known in folders if (known / name).is_file()), None):
                whose = "agentrl" if other == folders[0] else f"'{other}'"
                line = f"'{file}' has the name of an option of {whose}; give it another name"
                raise UserError(line, code="option-exists")
        folders.append(folder)
    return folders


def groups(config_dirs: ConfigDirs = None) -> list[str]:
    """Return the names of all groups, a user's own included."""
    folders = [folder for root in group_folders(config_dirs) for folder in root.iterdir()]
    names = {folder.name for folder in folders if folder.is_dir()}
    return sorted(names | {file.stem for file in _sectioned_files(config_dirs)})


def options(group: str, config_dirs: ConfigDirs = None) -> dict[str, str]:
    """Return the options of a group, each with the comment that describes it."""
    found: dict[str, str] = {}
    for root in group_folders(config_dirs):
        if (file := root / f"{group}.yaml").is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            found |= dict(re.findall(r"^(\w+):(?: *# *(.*))?", text, re.MULTILINE))
        for file in sorted(root.glob(f"{group}/*.yaml")):
            text = file.read_text(encoding="utf-8", errors="replace")
            comment = re.match(r"(?:# @package.*\n)?#(?! @package) *(.*)", text)
            found[file.stem] = comment[1].strip() if comment else ""
    return found


def not_found(
    kind: str, name: str, known: Iterable[str], code: str = "unknown-option"
) -> UserError:
    """Return the error of an unknown name, which suggests the nearest known one or some of them."""
    choices = sorted(known)
    remedy = f"choose one of {', '.join(choices)}" if choices else "it takes none"
    if len(choices) > MOST_CHOICES:
        remedy = f"there are {len(choices)}, such as {choices[0]} and {choices[-1]}"
    if close := difflib.get_close_matches(name, choices, n=1):
        remedy = f"did you mean '{close[0]}'?"
    return UserError(f"{kind} '{name}' not found; {remedy}", code=code)


def register_sections(config_dirs: ConfigDirs = None) -> None:
    """Make sections of files known to Hydra as options of groups.

    The sections of a file such as `ablation.yaml` are the options of the group `ablation`. The
    sections under `algos` of a recipe or an ablation apply to a single algorithm: `nlac` of the
    recipe `wiki` becomes the option `wiki_nlac` of the group `recipe_algos`.
    """
    recipes = [file for root in group_folders(config_dirs) for file in root.glob("recipe/*.yaml")]
    _register(_versions(_sectioned_files(config_dirs)), _versions(recipes))


Versions = tuple[tuple[Path, int], ...]  # files with the times of their last changes


def _versions(paths: Iterable[Path]) -> Versions:
    return tuple((path, path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=1)
def _register(sectioned: Versions, recipes: Versions) -> None:
    """Register the sections of these files, once while no file changes."""
    from hydra.core.config_store import ConfigStore

    def store(group: str, name: str, values: Any, file: Path) -> None:
        source = str(file.relative_to(file.parents[file.parent.name == "recipe"]))
        ConfigStore.instance().store(name, values, group, "_global_", provider=source)

    def store_algos(group: str, name: str, values: dict[str, Any], file: Path) -> None:
        for algo, part in (values.get(ALGOS) or {}).items():
            store(f"{group}_{ALGOS}", f"{name}_{algo}", part, file)

    for group in (*SECTIONED, *(f"{group}_{ALGOS}" for group in ("recipe", *SECTIONED))):
        ConfigStore.instance().repo.pop(group, None)
    for file, _ in sectioned:
        for name, values in read_yaml(file).items():
            store_algos(file.stem, name, values, file)
            plain = {key: value for key, value in values.items() if key != ALGOS}
            store(file.stem, name, plain, file)
    for file, _ in recipes:
        for part in with_bases(file):
            store_algos("recipe", file.stem, read_yaml(part), part)


def _sectioned_files(config_dirs: ConfigDirs) -> list[Path]:
    paths = [root / f"{name}.yaml" for root in group_folders(config_dirs) for name in SECTIONED]
    return [path for path in paths if path.is_file()]


def with_bases(file: Path) -> list[Path]:
    """Return the files of the same folder that a file builds on, and the file itself."""
    names = [name for name in read_yaml(file).get("defaults", []) if isinstance(name, str)]
    bases = [file.with_name(f"{name}.yaml") for name in names if name != "_self_"]
    return [part for base in bases if base.is_file() for part in with_bases(base)] + [file]


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file, without resolved interpolations."""
    return _read_version(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _read_version(file: Path, changed: int) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return found if isinstance(found, dict) else {}


# compose


def component_node(component: Any) -> dict[str, Any]:
    """Return the node that configures an object as it is: its class and its fields, functions by
    their names. Raises UserError for a value that a configuration cannot hold."""
    cls = type(component)
    values = {f.name: getattr(component, f.name) for f in fields(component) if f.init}
    plain = {key: plain_value(f"{cls.__name__}.{key}", value) for key, value in values.items()}
    return {"_target_": _public_name(cls), **plain}


def _public_name(cls: type) -> str:
    """Return the name of a class, for one of ours the name that a configuration may have."""
    from agentrl_cli.config.validation import PUBLIC

    for group in (f"{PACKAGE.name}.{name}" for name in PUBLIC):
        if cls.__module__.startswith(f"{group}.") and hasattr(import_module(group), cls.__name__):
            return f"{group}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def plain_value(key: str, value: Any) -> Any:
    """Return a value of a component as a configuration holds it: a dataclass as a mapping,
    functions by their names. Raises UserError for a function that cannot be imported."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list):
        return [plain_value(key, item) for item in value]
    if not isinstance(value, FunctionType):
        return value
    if getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value:
        return f"{value.__module__}:{value.__qualname__}"
    line = f"{key} is a lambda or a function inside another; define it at the top of a module"
    raise UserError(line, code="not-importable")


def compose(overrides: list[str], config_dirs: ConfigDirs = None) -> DictConfig:
    """Return the groups and overrides as one configuration, not checked yet. Its `choices` record
    the chosen options. Raises UserError for unknown options, with all other mistakes."""
    group_folders(config_dirs)
    parsed = parse_overrides(overrides)
    checked = {item.key_or_group: _unknown_option(item, config_dirs) for item in parsed}
    wrong = {group: line for group, line in checked.items() if line}
    kept = [item for item in parsed if item.key_or_group.partition(".")[0] not in wrong]
    cfg = compose_with_hydra([forced(item, config_dirs) for item in kept], config_dirs)
    _keep_text(cfg, kept)
    if wrong:
        lines = [*wrong.values(), *map(str, _validated(cfg)[1])]
        raise UserError("\n".join(lines), code="unknown-option")
    return cfg


def compose_checked(overrides: list[str], config_dirs: ConfigDirs = None) -> DictConfig:
    """Compose and check a configuration."""
    return check(compose(overrides, config_dirs))


def parse_overrides(overrides: list[str], *, is_sweep: bool = False) -> list[Override]:
    """Parse `key=value` overrides; those of a sweep may have several values. Raises one UserError
    with one line for each mistake."""
    parsed, errors = [], []
    for text in replace_old_names(overrides):
        root = re.split(r"[./=]", text.lstrip("+~"), maxsplit=1)[0]
        key, sign, value = text.partition("=")
        text = f"{key.strip()}{sign}{value}"
        item = _parsed(text)
        parsed += [item] if item is not None else []
        if kind := secret_in(text):
            errors.append(f"'{text.partition('=')[0]}' holds {kind}; {NO_SECRETS}")
        elif item is None:
            form = "write it as key=value or key=a,b" if is_sweep else "write it as key=value"
            if sign and _parsed(quotes := quoted(text, is_sweep=is_sweep)):
                form = f"quote it: {shlex.quote(quotes)}"
            errors.append(f"override '{text}' cannot be parsed; {form}")
        elif item.is_sweep_override() and not is_sweep:
            line = f"override '{text}' has several values; give one, a list as [a,b], or quote it"
            errors.append(f"{line}: {shlex.quote(quoted(text))}")
        if root == "choices":
            errors.append(f"'{text}' cannot be set; choose an option with GROUP=NAME")
        elif root == "hydra" and not is_sweep:
            errors.append(f"'{text}' is an option of Hydra, for agentrl sweep only; leave it out")
    if errors:
        raise UserError("\n".join(errors), code="invalid-override")
    return parsed


def _parsed(text: str) -> Override | None:
    """Return what Hydra reads, also of a value that needs quotes but has no structure. None if it
    refuses the text, or if there is no key."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    forms = [text, quoted(text)] if PLAIN_TEXT.fullmatch(text) else [text]
    with suppress(ValueError, RecursionError):
        for form in forms if KEY.match(text) else ():
            with suppress(HydraException):
                return OverridesParser.create().parse_override(form)
    return None


def quoted(text: str, *, is_sweep: bool = False) -> str:
    """Return an override with its value, or each value of a sweep, in quotes for Hydra."""
    from hydra.core.override_parser.types import Quote, QuotedString

    key, _, value = text.partition("=")
    parts = value.split(",") if is_sweep else [value]
    return f"{key}={','.join(QuotedString(part, Quote.double).with_quotes() for part in parts)}"


def _keep_text(cfg: DictConfig, parsed: list[Override]) -> None:
    """Set every text that looks like a number, such as `name=1e3`, as it was written."""
    from omegaconf import OmegaConf

    from agentrl_cli.config.settings import Settings
    from agentrl_cli.config.validation import is_text

    values: Any = None
    for item in parsed:
        key, given = item.key_or_group, str(item.input_line).partition("=")[2].strip()
        if isinstance(item.value(), int | float) and str(item.value()) != given:
            values = values or OmegaConf.to_container(cfg, resolve=False)
            if is_text(Settings, values, key.split(".")):
                OmegaConf.update(cfg, key, given)


def _unknown_option(item: Override, config_dirs: ConfigDirs) -> str | None:
    """Return the error of an override that chooses an option which does not exist."""
    group, value = item.key_or_group, item.value()
    known = options(group, config_dirs)
    if group == "experiment":
        known |= dict.fromkeys(PRESETS, "")
    elif group not in groups(config_dirs):
        return None
    if item.is_delete() or str(value) in known:
        return None
    if value is None:
        return f"'{item.input_line}' chooses nothing; name an option, or leave it out"
    return str(not_found(group, str(value), known))


def forced(item: Override, config_dirs: ConfigDirs) -> str:
    """Return the override in the form with which Hydra accepts unknown keys."""
    text = item.input_line or ""
    is_plain = text[0] not in "+~" and item.key_or_group not in groups(config_dirs)
    return f"++{text}" if is_plain else text


def search_path(config_dirs: ConfigDirs) -> list[str]:
    """Return the override with which Hydra finds a user's own groups."""
    folders = ",".join(f"'file://{folder.resolve()}'" for folder in config_dirs or ())
    return [f"hydra.searchpath=[{folders}]"] if folders else []


def compose_with_hydra(overrides: list[str], config_dirs: ConfigDirs) -> DictConfig:
    """Return the groups and overrides as one configuration. Raises UserError if Hydra fails."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    unreadable = (
        HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError,
    )  # fmt: skip
    overrides = search_path(config_dirs) + overrides
    try:
        with HYDRA:
            register_sections(config_dirs)
            with hydra.initialize_config_dir(str(conf_folder()), version_base=None):
                cfg = hydra.compose("config", overrides, return_hydra_config=True)
    except unreadable as error:
        line = f"the configuration cannot be composed: {_reason(error)}"
        raise UserError(line, code="cannot-compose") from None
    complete(cfg, cfg.hydra.runtime.choices, config_dirs)
    return cfg


def complete(
    cfg: DictConfig, options_of: Mapping[str, str | None], config_dirs: ConfigDirs
) -> None:
    """Complete a configuration that Hydra composed: record the chosen options as its `choices`,
    insert the prompts, and remove nodes that are only used to compose."""
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    with open_dict(cfg):
        cfg.choices = {g: options_of[g] for g in groups(config_dirs) if g in options_of}
        # a collector may hold an algorithm's
        for holder in map(cfg.get, ("algo", "env", "rollout")):
            plain: Any = OmegaConf.is_dict(holder) and OmegaConf.to_container(holder)
            for key, value in files.flatten(plain or {}).items():
                if isinstance(value, str) and value.startswith("${prompts."):
                    with suppress(OmegaConfBaseException):  # reported when the node is resolved
                        OmegaConf.update(holder, key, OmegaConf.select(holder, key))
        for key in ("hydra", ALGOS, "prompts"):
            cfg.pop(key, None)


# stored configurations


def load(
    file: Path,
    overrides: list[str],
    *,
    choosable: Collection[str] = ("search",),
    config_dirs: ConfigDirs = None,
) -> DictConfig:
    """Return the stored configuration of a run, with its keys renamed as in this version.

    Overrides may set single values, and choose options of the groups in `choosable`. Raises
    UserError for a file that is not a configuration or that calls a resolver, for example to read
    an environment variable: runs store only values. Raises it for an override of another group.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        text = file.read_text(encoding="utf-8")
        files.require_plain_yaml(text)
        plain: Any = OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
        if not isinstance(plain, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        line = f"configuration '{file}' cannot be read ({_reason(error)})"
        remedy = "give the config.yaml of a run"
        raise UserError(f"{line}; {remedy}", code="unreadable-configuration") from None
    for key, value in leaves(plain):
        if ":" in str(value).partition("${")[2]:
            line = f"configuration '{file}' calls a resolver in {key}; write the value itself"
            raise UserError(line, code="resolver")
    cfg = OmegaConf.create(update_stored(plain))
    parsed, known = parse_overrides(overrides), groups(config_dirs)
    for item in sorted(parsed, key=lambda item: item.key_or_group not in choosable):
        if item.key_or_group in choosable:
            _choose_group(cfg, item, file, config_dirs)
        elif item.key_or_group in known:
            line = f"'{item.input_line}' chooses a group, but '{file}' is a complete configuration"
            raise UserError(f"{line}; start a new run with it", code="group-of-stored")
        else:
            OmegaConf.update(cfg, item.key_or_group, item.value(), merge=True, force_add=True)
    _keep_text(cfg, parsed)
    return cfg


def _choose_group(cfg: DictConfig, item: Override, file: Path, config_dirs: ConfigDirs) -> None:
    """Put an option into a stored configuration. An environment comes with its rollout sizes, or
    with those of the run's model."""
    from omegaconf import OmegaConf

    stored: Any = OmegaConf.to_container(cfg)
    if not isinstance(stored.get("choices"), dict):
        line = f"configuration '{file}' has no choices; give the config.yaml of a run"
        raise UserError(line, code="no-choices")
    group, model = item.key_or_group, stored["choices"].get("model")
    same_model = [f"model={model}"] if model in options("model", config_dirs) else []
    composed = compose([*same_model, str(item.input_line)], config_dirs)
    for node in (group, "rollout") if group == "env" else (group,):
        cfg[node] = composed[node] if node in composed else None
        if node in composed.choices:
            cfg.choices[node] = composed.choices[node]


# check and build


def check(cfg: DictConfig, skip: Collection[str] = ()) -> DictConfig:
    """Return the same configuration, resolved, with every value of its declared type.

    Root nodes named in `skip` are left out. Raises one UserError with one line for each mistake.
    No class of this package that needs torch is imported.
    """
    from omegaconf import OmegaConf

    from agentrl_cli.config.validation import raise_all

    values, mistakes = _validated(cfg, skip)
    raise_all(mistakes)
    checked = OmegaConf.create(values)
    OmegaConf.set_struct(checked, True)
    return checked


def build(node: Any, **injected: Any) -> Any:
    """Build the class that `_target_` names from the node's values and the injected ones, which win
    over the node. Raises UserError with one line for each mistake in the node."""
    from agentrl_cli.config.validation import construct, raise_all, validate_target

    values, path = _plain_node(node)
    if "_target_" not in values:
        line = f"{path} has no _target_; name the class that it configures"
        raise UserError(line, code="unknown-target")
    mistakes: list[UserError] = []
    given = {key: value for key, value in values.items() if key not in injected}
    typed = validate_target(given, mistakes, (path,), injected)
    raise_all(mistakes)
    return construct(Any, typed, **injected)


def as_dataclass(node: Any, schema: type[T]) -> T:
    """Return a node without `_target_` as its dataclass."""
    from agentrl_cli.config.validation import construct, raise_all, validate

    values, path = _plain_node(node)
    mistakes: list[UserError] = []
    typed = validate(schema, values, mistakes, (path,))
    raise_all(mistakes)
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


def _validated(
    cfg: DictConfig, skip: Collection[str] = ()
) -> tuple[dict[str, Any], list[UserError]]:
    """Return the typed values of a configuration, resolved, and all of its mistakes."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from agentrl_cli.config.settings import Settings, check_together
    from agentrl_cli.config.validation import validate, without_missing

    mistakes: list[UserError] = []
    values: dict[str, Any] = {}
    unresolved = set()
    for key in map(str, cfg):
        try:
            value: Any = "???" if OmegaConf.is_missing(cfg, key) else cfg[key]
            is_node = OmegaConf.is_config(value)
            values[key] = OmegaConf.to_container(value, resolve=True) if is_node else value
        except OmegaConfBaseException as error:
            unresolved.add(key)
            if not NOT_CHOSEN.search(_reason(error)):  # reported as a missing group
                line = f"{key} cannot be resolved: {_reason(error)}"
                mistakes.append(UserError(line, code="unresolved"))
    values = {key: value for key, value in values.items() if key not in skip}
    values = _expand_home(without_missing(values, mistakes))
    mistakes += secret_errors(values)
    typed = validate(Settings, values, mistakes, optional={*skip, *unresolved})
    if not mistakes:
        mistakes += check_together(typed)
    return typed, mistakes


def _expand_home(value: Any) -> Any:
    """Return a node with `~` at the beginning of every path replaced by the home folder."""
    if isinstance(value, dict):
        return {key: _expand_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand_home(item) for item in value]
    is_path = isinstance(value, str) and (value == "~" or value.startswith("~/"))
    return os.path.expanduser(value) if is_path else value


def _reason(error: Exception) -> str:
    """Return the message of an error of the system, of YAML or of OmegaConf in one line."""
    text = getattr(error, "strerror", None) or str(error).partition("\n    full_key")[0]
    return " ".join(text.split())[:300] or type(error).__name__
