"""Sharded weights by torch's `fully_shard`: each rank holds a part of every tensor. Whole tensors
are gathered for files and for sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl_cli.core.types import Sample
from agentrl_cli.models.forward import ModelForward, collate


def shard(model_forward: ModelForward, device: torch.device, compute: torch.dtype | None) -> None:
    """Shard the model over all ranks, on `device`, layer by layer. Passes compute in `compute`
    (None: the weights' dtype). Gradients are summed over ranks in float32."""
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    layers = [
        part for part in model_forward.modules() if isinstance(part, GradientCheckpointingLayer)
    ]
    for part in (*layers, model_forward):  # the root too
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for part in _parts(model_forward):  # a sum: the learner divides
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    with torch.no_grad():  # the first pass makes it the root
        model_forward.compute(collate([Sample([0, 0], [0, 1])]).to(device))


@contextmanager
def gathered(model_forward: ModelForward) -> Iterator[None]:
    """Gather the whole weights on every rank, which then may call the body alone. All ranks must
    enter."""
    parts = _parts(model_forward)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)
        parts[0].reset_iter_state()  # no backward pass resets it


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor; a sharded one is gathered from all ranks, on the CPU."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_whole(tensor: Tensor, found: Tensor) -> None:
    """Copy a whole tensor into `tensor`, of which this rank may hold a shard."""
    if isinstance(tensor, DTensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        moved = found.to(tensor.device, tensor.dtype)
        found = distribute_tensor(moved, mesh, placements, src_data_rank=None)
    tensor.copy_(found)


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's whole parameters on rank 0, on the CPU; empty on other ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    names = dict(module.named_parameters()).keys()
    found: Any = get_model_state_dict(module, options=options)
    return {name: weight for name, weight in found.items() if name in names}


def _parts(model_forward: ModelForward) -> list[FSDPModule]:
    """Return the root, then the layers."""
    return [part for part in model_forward.modules() if isinstance(part, FSDPModule)]
