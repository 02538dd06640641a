"""`agentrl new` writes packages that work as they stand; tests/test_docs_commands.py installs them
and trains with them, as docs/extending.md prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.new import write_package
from agentrl_cli.envs.check import check_env
from tests.builders.errors import user_error
from tests.paths import ROOT

PACKAGES = ROOT / "tests" / "packages"
PAGE = ROOT / "docs" / "extending.md"  # its commands install the packages and train with them


def contents(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's source files."""
    kept = [f for f in folder.rglob("*") if f.suffix in (".py", ".yaml", ".toml") and f.is_file()]
    return {str(file.relative_to(folder)): file.read_text() for file in kept}


def test_new_environment_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, command = write_package("env", "find_it", tmp_path)
    assert command.endswith("--config-dir " + str(folder / "conf"))
    monkeypatch.syspath_prepend(folder)
    from find_it.env import FindIt  # pyright: ignore[reportMissingImports]

    assert check_env(lambda: FindIt(largest=20, max_turns=6)) == []
    for task in FindIt(largest=20, max_turns=6).tasks("train"):
        env = FindIt(largest=20, max_turns=6)
        env.reset(task, 0)
        for action in env.expert(task):
            step = env.step(action)
            if step.done:
                break
        assert step.info["success"], task


@pytest.mark.parametrize(("kind", "name"), [("env", "guess_it"), ("algo", "my_method")])
def test_page_shows_the_written_package(tmp_path: Path, kind: str, name: str):
    folder, _ = write_package(kind, name, tmp_path)
    written = contents(folder)
    assert len(written) == 5 and written == contents(PACKAGES / name)
    page = PAGE.read_text()
    for file, language in ((f"{name}/{kind}.py", "python"), (f"conf/{kind}/{name}.yaml", "yaml")):
        assert f"```{language}\n{written[file]}```" in page, file


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        ("model", "mine", "unknown-kind"), ("env", "My-World", "invalid-name"),
        ("algo", "class", "invalid-name"), ("env", "mine", "exists"), ("env", "json", "used-name"),
        ("env", "torch", "used-name"), ("env", "numpy", "used-name"),
        ("env", "twentyq", "option-exists"), ("algo", "grpo", "option-exists"),
    ],
)  # fmt: skip
def test_impossible_package_is_refused(tmp_path: Path, kind: str, name: str, code: str):
    (tmp_path / "mine").mkdir()
    with user_error(code, name if code != "unknown-kind" else kind):
        write_package(kind, name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
