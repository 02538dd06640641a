"""Which of several servers a prompt goes to: the one that has read most of it, as an earlier turn
of the same episode, unless that has its share of the call already."""

from __future__ import annotations

import math

BLOCK = 16  # tokens that are looked up together


class PrefixRouter:
    """Remembers of every prefix, in blocks of tokens, which of `servers` servers read it last."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.readers: dict[int, int] = {}  # by the hash of a prefix

    def route(self, prompts: list[list[int]], model: str) -> list[int]:
        """A server for each prompt of a call, none with more than its share. Those that are known
        furthest choose first."""
        if self.servers == 1:
            return [0] * len(prompts)
        chains = [_prefix_hashes(prompt, model) for prompt in prompts]
        known = [sum(key in self.readers for key in chain) for chain in chains]
        share = math.ceil(len(prompts) / self.servers)
        loads, chosen = [0] * self.servers, [0] * len(prompts)
        for i in sorted(range(len(prompts)), key=lambda i: -known[i]):
            server = self.readers[chains[i][known[i] - 1]] if known[i] else loads.index(min(loads))
            if loads[server] >= share:
                server = loads.index(min(loads))
            chosen[i] = server
            loads[server] += 1
            self.readers.update(dict.fromkeys(chains[i], server))
        return chosen

    def clear(self) -> None:
        """Forget all prefixes."""
        self.readers.clear()


def _prefix_hashes(prompt: list[int], model: str) -> list[int]:
    """A hash of each prefix of whole blocks, under the weights of that name."""
    hashes, last = [], hash(model)
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        last = hash((last, *prompt[end - BLOCK : end]))
        hashes.append(last)
    return hashes
