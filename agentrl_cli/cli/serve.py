"""`agentrl serve`: run a vLLM server in this terminal, or print the command that starts it."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from agentrl_cli.config.compose import ConfigDirs, as_dataclass, build, compose_checked
from agentrl_cli.config.settings import ModelConfig
from agentrl_cli.core.errors import RunAborted, UserError
from agentrl_cli.core.terminal import echo
from agentrl_cli.generators.vllm import (
    ServedModel,
    ServerSettings,
    choose_port,
    end_with_parent,
    find_program,
    serve_command,
    serve_variables,
)

USUAL_PORT = 8000  # vLLM's own


def serve(overrides: list[str], config_dirs: ConfigDirs = None, *, only_print: bool) -> None:
    """Serve until Ctrl-C, or print the command. The server accepts the LoRA adapters of runs with
    the same configuration.

    Raises UserError if the settings have no server, its program is missing, or its port is in
    use, and RunAborted if the server ends by itself.
    """
    if not any(override.startswith("hardware=") for override in overrides):
        overrides = ["hardware=vllm", *overrides]
    cfg = compose_checked(overrides, config_dirs)
    if "server" not in cfg.hardware.generator:
        line = f"hardware={cfg.choices.hardware} has no server; give hardware=vllm"
        raise UserError(line, code="no-server")
    settings = as_dataclass(cfg.hardware.generator.server, ServerSettings)
    if cfg.model.lora is None:
        line = "servers load LoRA adapters, and model.lora is null; give"
        raise UserError(
            f"{line} model.lora={{rank:16,alpha:32,targets:[all-linear]}}", code="no-lora"
        )
    if only_print and cfg.model.path == "tiny":
        line = "model=tiny has no folder that another program can read; leave --print out, or give"
        raise UserError(f"{line} model=hf model.path=FOLDER", code="no-folder")
    if not only_print:
        find_program(settings.program)
        choose_port(settings, USUAL_PORT)
    with tempfile.TemporaryDirectory(prefix="agentrl-") as folder:
        import torch

        from agentrl_cli.models.load import dtype_of, find_base

        config = as_dataclass(cfg.model, ModelConfig)
        dtype = str(dtype_of(config, torch.device(cfg.hardware.device)))
        served = ServedModel(
            path=find_base(config, cfg.seed, Path(folder)), dtype=dtype.removeprefix("torch."),
            rank=cfg.model.lora.rank,
            models=sum(spec.generates for spec in build(cfg.algo).models().values()),
        )  # fmt: skip
        port = settings.port or USUAL_PORT
        command, variables = serve_command(settings, served, port), serve_variables(settings)
        if only_print:
            given = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
            echo(" ".join([*given, shlex.join(command)]))
            return
        url = f"http://{settings.host}:{port}"
        echo(f"train with: hardware=vllm hardware.generator.urls=[{url}]", err=True)
        process = subprocess.Popen(command, env=os.environ | variables, preexec_fn=end_with_parent)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # which has reached the server, too
            process.wait()
            return
        if code:
            raise RunAborted(f"the server ended with code {code}; see its output above")
