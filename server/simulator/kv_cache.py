"""The KV cache in blocks, as vLLM v1 keeps it: gives blocks to requests, takes them back, finds prefixes again. Pure.

Two of one interface: `KvCache` counts blocks; `PrefixCache` knows each one, so that a full block of an earlier request
can be found by the hash of everything up to its end, until its place is needed (least recently used first).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. All but the first four belong to the engine, the instants to who drives it."""

    id: int
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[Hashable] = ()
    """Of each full block of prompt and output, the hash of all tokens up to its end (`block_hashes`); none: its tokens
    are like nobody else's."""
    prefilled: int = 0
    """Tokens of the prompt (after a preemption: of prompt and output so far) whose KV is there."""
    generated: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache when it was first admitted."""
    preemptions: int = 0
    held: int = 0
    """Blocks that it holds."""
    room: int = 0
    """Tokens that fit into them yet; kept while it decodes."""
    blocks: list[int] = field(default_factory=list)
    findable: int = 0
    """Its first blocks that the prefix cache can find."""
    arrived_ns: int = 0
    admitted_ns: int | None = None
    first_ns: int | None = None
    last_ns: int = 0


def block_hashes(token_ids: Sequence[int], block_size: int) -> list[Hashable]:
    """For each full block, a hash of all tokens from the first to the block's last."""
    hashes: list[Hashable] = []
    before: Hashable = None
    tokens = array("q", token_ids)
    for end in range(block_size, len(tokens) + 1, block_size):
        before = hash((before, tokens[end - block_size : end].tobytes()))
        hashes.append(before)
    return hashes


class KvCache:
    """Blocks without a memory of what was in them."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._total = self._free = blocks
        self._block_size = block_size

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold."""
        return 1 - self.free / self._total

    @property
    def free(self) -> int:
        """Blocks that a request can get."""
        return self._free

    def holds(self, tokens: int) -> bool:
        """Whether so many tokens of one request fit when it is alone."""
        return self._blocks_of(tokens) <= self._total

    def adopt(self, request: Request, tokens: int) -> int | None:
        """Look for the request's prefix: tokens found, held from now on. None, and nothing held, unless `tokens` fit."""
        return 0 if self._blocks_of(tokens) <= self._free else None

    def grow(self, request: Request, tokens: int) -> bool:
        """Let the request hold blocks for `tokens` tokens; False, and nothing changed, when there are too few."""
        more = self._blocks_of(tokens) - request.held
        if more > self._free:
            return False
        if more > 0:
            self._free -= more
            request.held += more
        return True

    def computed(self, request: Request, tokens: int) -> None:
        """The KV of the request's first `tokens` tokens is there: full blocks can be found."""

    def release(self, request: Request) -> None:
        """Take all blocks back."""
        self._free += request.held
        request.held = 0

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


class PrefixCache(KvCache):
    """Blocks that are found again by what is in them.

    A block whose request has ended stays findable until it is handed out; blocks that nobody can find are handed out
    first, then those that were given back longest ago, of one request the last first.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._holders = [0] * blocks
        self._hash_of: list[Hashable | None] = [None] * blocks
        self._found_as: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        return len(self._idle)

    def adopt(self, request: Request, tokens: int) -> int | None:
        # The last token is computed in any case: its output is wanted.
        most = (request.prompt_tokens + request.generated - 1) // self._block_size
        found = []
        for block_hash in request.hashes[:most]:
            block = self._found_as.get(block_hash)
            if block is None:
                break
            found.append(block)
        idle = sum(block in self._idle for block in found)
        if self._blocks_of(tokens) - len(found) + idle > len(self._idle):
            return None
        for block in found:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1
        request.blocks = found
        request.held = request.findable = len(found)
        return len(found) * self._block_size

    def grow(self, request: Request, tokens: int) -> bool:
        more = self._blocks_of(tokens) - request.held
        if more > len(self._idle):
            return False
        for _ in range(more):
            block, _ = self._idle.popitem(last=False)
            old = self._hash_of[block]
            if old is not None:
                del self._found_as[old]
                self._hash_of[block] = None
            self._holders[block] = 1
            request.blocks.append(block)
        request.held = len(request.blocks)
        return True

    def computed(self, request: Request, tokens: int) -> None:
        full = min(tokens // self._block_size, len(request.hashes))
        for i in range(request.findable, full):
            block_hash = request.hashes[i]
            # Another request may have filled the same block at the same time: one of them is enough.
            if block_hash not in self._found_as:
                self._found_as[block_hash] = request.blocks[i]
                self._hash_of[request.blocks[i]] = block_hash
        request.findable = max(request.findable, full)

    def release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._idle[block] = None
                if self._hash_of[block] is None:
                    self._idle.move_to_end(block, last=False)
        request.blocks = []
        request.held = request.findable = 0
