"""`agentrl new` writes packages that work as they stand; tests/test_docs_commands.py installs them
and trains with them, as docs/extending.md prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.cli.new import write_package
from agentrl_cli.core.errors import UserError
from agentrl_cli.envs.check import check_env
from tests.paths import ROOT

PACKAGES = ROOT / "tests" / "packages"
PAGE = ROOT / "docs" / "extending.md"  # whose commands install the packages and train with them


def contents(folder: Path) -> dict[str, str]:
    """The texts of a folder's files by their places; what Python or pip leave there is none."""
    kept = [f for f in folder.rglob("*") if f.suffix in (".py", ".yaml", ".toml") and f.is_file()]
    return {str(file.relative_to(folder)): file.read_text() for file in kept}


@pytest.mark.parametrize("name", ["json", "torch", "numpy"])
def test_no_package_takes_the_name_of_a_module_that_is_needed(tmp_path: Path, name: str):
    with pytest.raises(UserError, match=f"'{name}' is a module that Python or agentrl needs"):
        write_package("env", name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_new_world_keeps_the_contract_and_its_expert_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
def test_what_is_written_is_the_package_that_the_page_shows(tmp_path: Path, kind: str, name: str):
    folder, _ = write_package(kind, name, tmp_path)
    written = contents(folder)
    assert len(written) == 5 and written == contents(PACKAGES / name)
    page = PAGE.read_text()
    for file, language in ((f"{name}/{kind}.py", "python"), (f"conf/{kind}/{name}.yaml", "yaml")):
        assert f"```{language}\n{written[file]}```" in page, file


def test_what_cannot_be_written_is_refused(tmp_path: Path):
    for kind, name, says in (
        ("model", "mine", "'model' cannot be written; choose env or algo"),
        ("env", "My-World", "'My-World' is no name of a module"),
        ("algo", "class", "'class' is no name of a module"),
    ):
        with pytest.raises(UserError, match=says):
            write_package(kind, name, tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="exists; choose another name"):
        write_package("env", "mine", tmp_path)
