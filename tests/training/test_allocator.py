"""What the allocator is told: freed memory stays, so large buffers cost page faults only once."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from agentrl_cli.training.build import keep_freed_memory
if {kept}:
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [torch.ones(2**24) for _ in range(3)]  # 64 MiB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(12)][-1])  # the first ones find their places
"""


def faults(kept: bool) -> int:
    """Page faults of the twelfth round of large buffers, in a process of its own."""
    command = [sys.executable, "-c", FAULTS.format(kept=kept)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told anything")
def test_large_buffers_are_made_of_kept_pages() -> None:
    assert faults(kept=True) < 100


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told anything")
def test_default_allocator_uses_new_pages() -> None:
    assert faults(kept=False) > 100
