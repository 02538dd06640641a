"""`agentrl export`: a plain model folder that generates what the policy of the run generates."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from typer.testing import CliRunner

from agentrl_cli.cli.export import export, to_dtype
from agentrl_cli.cli.main import app
from agentrl_cli.config.compose import check, load
from agentrl_cli.core.errors import UserError
from agentrl_cli.generators.base import Sampling
from agentrl_cli.runs.run import Run
from agentrl_cli.training.build import Parts, build_parts
from tests.builders.errors import user_error
from tests.builders.gguf_files import write_gguf
from tests.builders.runs import trained
from tests.paths import ROOT

ONE = ["steps=1", "save_every=0", "eval_every=0", "eval.baseline=false", "eval.greedy=false"]
LORA = ["model=hf", "model.dtype=float32", "model.lora.rank=4", "algo.optimizer.lr=0.003"]
PARTS = {"config.json", "generation_config.json", "model.safetensors", "chat_template.jinja"}
PARTS |= {"tokenizer.json", "tokenizer_config.json", "README.md"}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
GREEDY = Sampling(max_tokens=12, temperature=0.0, stop_ids=())


def parts_of(run: Run) -> Parts:
    """What the run played with: its models, critics and heads included."""
    parts = build_parts(check(load(run.config_file, [])), None)
    parts.restore_models(run.latest_checkpoint())
    return parts


KINDS = ("grpo", "nlac", "self_ac")  # without a head and with one, alone and beside others


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=IDS).logits


def greedy(model: PreTrainedModel) -> list[int]:
    """As `GREEDY` samples, by the library alone."""
    found = model.generate(IDS, do_sample=False, max_new_tokens=12, eos_token_id=None)  # pyright: ignore
    return found[0, IDS.shape[1] :].tolist()


@pytest.mark.parametrize("algo", KINDS)
def test_plain_model_generates_what_the_run_does(tmp_path: Path, algo: str):
    run = trained(tmp_path, algo, "it", *ONE)
    assert export(str(run.folder), tmp_path / "plain")[1] == 1
    assert {file.name for file in (tmp_path / "plain").iterdir()} == PARTS
    plain, parts = AutoModelForCausalLM.from_pretrained(tmp_path / "plain"), parts_of(run)
    assert torch.equal(logits(plain), logits(parts.models.module("policy")))
    assert greedy(plain) == parts.generator.generate(IDS.tolist(), [0], GREEDY)[0][0].ids
    tokenizer, ours = AutoTokenizer.from_pretrained(tmp_path / "plain"), parts.models.tokenizer
    text = "<|user|>Is it 3 o'clock,\n  a 'stop' sign?"
    assert tokenizer.encode(text) == ours.encode(text)
    assert tokenizer.chat_template == ours.chat_template


@pytest.mark.parametrize("algo", ["grpo", "self_ac"])
def test_merged_adapter_generates_the_same(model_folder: Path, tmp_path: Path, algo: str):
    learns = ["algo.critic_warmup=0"] if algo == "self_ac" else []
    run = trained(tmp_path, algo, "it", *LORA, f"model.path={model_folder}", *ONE, *learns)
    export(str(run.folder), tmp_path / "plain")
    assert {file.name for file in (tmp_path / "plain").iterdir()} == PARTS
    plain, parts = AutoModelForCausalLM.from_pretrained(tmp_path / "plain"), parts_of(run)
    assert greedy(plain) == parts.generator.generate(IDS.tolist(), [0], GREEDY)[0][0].ids
    exact, adapted = plain.double(), parts.models.module("policy").double()
    assert (logits(exact) - logits(adapted)).abs().max() < 1e-5
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    assert (logits(exact) - logits(base)).abs().max() > 1e-2
    export(str(run.folder), tmp_path / "adapter", adapter=True)
    again = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    assert (logits(again.double()) - logits(exact)).abs().max() < 1e-5


def test_adapter_of_a_converted_model_opens_in_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "it.gguf"
    write_gguf(file)
    run = trained(tmp_path, "grpo", "it", *LORA, f"model.path={file}", *ONE)
    export(str(run.folder), tmp_path / "adapter", adapter=True)
    opened = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)
    adapted = parts_of(run).models.module("policy")
    assert (logits(opened) - logits(adapted)).abs().max() < 1e-5


def test_weights_keep_their_dtype(tmp_path: Path):
    run = trained(tmp_path, "grpo", "it", "model.dtype=bfloat16", *ONE)
    export(str(run.folder), tmp_path / "plain")
    file = "model.safetensors"
    saved = load_file(run.latest_checkpoint() / "models" / "policy" / file)
    plain = load_file(tmp_path / "plain" / file)
    assert saved.keys() == plain.keys() and {w.dtype for w in plain.values()} == {torch.bfloat16}
    assert all(torch.equal(plain[key], weight) for key, weight in saved.items())


def test_rounding_to_bfloat16_keeps_small_changes():
    base = torch.nn.Linear(500, 500)
    for weight in base.parameters():
        weight.data = weight.data.bfloat16().float()
    changed = copy.deepcopy(base)
    changed.weight.data += 2e-5  # far below a step of bfloat16 at most weights
    for model in (changed, exact := copy.deepcopy(base)):
        to_dtype(model, torch.bfloat16)
    assert torch.equal(exact.weight.float(), base.weight)
    moved = changed.weight.float() - base.weight
    assert abs(float(moved.mean()) / 2e-5 - 1) < 0.1
    nearest = (base.weight + 2e-5).bfloat16().float() - base.weight
    assert float(nearest.mean()) / 2e-5 < 0.7


def test_card_names_base_command_and_results(run: Run, tmp_path: Path):
    export(str(run.folder), tmp_path / "plain")
    card = (tmp_path / "plain" / "README.md").read_text()
    for text in ("tiny", "`grpo`", run.meta["command"], "test success", "temperature 0.5"):
        assert text in card


@pytest.mark.slow
def test_card_names_the_runs_before(run: Run, tmp_path: Path):
    demos = f"data.demos={ROOT / 'tests' / 'builders' / 'coin_demos.jsonl'}"
    later = trained(tmp_path, "sft", "later", *ONE, f"init={run.folder}", demos)
    last = trained(tmp_path, "rft", "last", *ONE, f"init={later.folder}")
    export(str(last.folder), tmp_path / "plain")
    card = (tmp_path / "plain" / "README.md").read_text()
    assert "`later`, a run of `sft`, which learned from `" in card
    assert "`it`, a run of `grpo`." in card


def test_run_without_adapter_is_refused(run: Run, tmp_path: Path):
    with user_error("no-adapter"):
        export(str(run.folder), tmp_path / "adapter", adapter=True)


def test_adapter_on_shared_weights_is_refused(model_folder: Path, tmp_path: Path):
    shared = [*LORA, "model.lora.targets=[lm_head]", f"model.path={model_folder}"]
    run = trained(tmp_path, "grpo", "it", *shared, *ONE)
    with user_error("not-mergeable"):
        export(str(run.folder), tmp_path / "plain")
    assert not list(tmp_path.glob("*plain*"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one step."""
    return trained(tmp_path_factory.mktemp("runs"), "grpo", "it", "eval.temperature=0.5", *ONE)


def test_verb_prints_the_folder(run: Run, tmp_path: Path):
    (tmp_path / "plain").mkdir()  # an empty folder is as good as none
    done = CliRunner().invoke(app, ["export", str(run.folder), str(tmp_path / "plain")])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'plain'}\n")
    assert f"model.path={tmp_path / 'plain'}" in done.stderr
    assert (tmp_path / "plain" / "config.json").is_file()


def test_nonempty_target_is_refused(run: Run, tmp_path: Path):
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    for kept in (file, full / "mine"):
        kept.write_text("mine")
    for taken in (full, file):
        with user_error("exists", f"'{taken}'"):
            export(str(run.folder), taken)
    with user_error("not-a-folder", f"'{file}/below'"):
        export(str(run.folder), file / "below")
    assert [path.read_text() for path in (file, full / "mine")] == ["mine", "mine"]
    assert sorted(tmp_path.iterdir()) == [file, full] and len(list(full.iterdir())) == 1


def test_run_without_weights_is_refused(run: Run, tmp_path: Path):
    bare = Run.create(load(run.config_file, [f"runs={tmp_path}"]), command="", overrides=[])
    for name in ("nowhere", str(bare.folder)):
        with pytest.raises(UserError):
            export(name, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2**8, 2**16])
def test_full_disk_leaves_nothing(run: Run, tmp_path: Path, limit: int):
    """A file may grow to `limit` bytes: too few for the configuration, for the weights."""
    command = [sys.executable, "-m", "agentrl_cli.cli", "export", str(run.folder)]
    done = subprocess.run(
        [*command, str(tmp_path / "plain")], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"'{tmp_path}/plain'" in done.stderr
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []
