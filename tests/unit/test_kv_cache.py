"""Blocks of the KV cache: counted, shared, found again, handed out in the right order; nothing lost, nothing double."""

from hypothesis import given
from hypothesis import strategies as st

from server.simulator.kv_cache import KvCache, PrefixCache, Request, block_hashes

SIZE = 4


def request(id: int, tokens: list[int], output_tokens: int = 1) -> Request:
    return Request(id, len(tokens), output_tokens, block_hashes(tokens + [-1] * output_tokens, SIZE))


def served(cache: KvCache, one: Request) -> int:
    """Admits a request, computes its prompt and ends it; the tokens found."""
    found = cache.adopt(one, one.prompt_tokens)
    assert found is not None
    assert cache.grow(one, one.prompt_tokens)
    cache.computed(one, one.prompt_tokens)
    cache.release(one)
    return found


def test_a_blocks_hash_depends_on_everything_before_it() -> None:
    first, second = block_hashes([1, 2, 3, 4, 5, 6, 7, 8], SIZE), block_hashes([9, 2, 3, 4, 5, 6, 7, 8, 9], SIZE)
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    assert block_hashes([1, 2, 3, 4, 9], SIZE) == first[:1]


def test_blocks_are_counted_and_come_back() -> None:
    cache = KvCache(10, SIZE)
    one = Request(1, 9, 1)
    assert cache.adopt(one, 9) == 0
    assert cache.grow(one, 9) and cache.free == 7
    assert cache.grow(one, 12) and cache.free == 7
    assert not cache.grow(one, 41) and cache.free == 7
    assert cache.usage == 1 - 7 / 10
    cache.release(one)
    assert (cache.free, one.held) == (10, 0)
    assert cache.holds(40) and not cache.holds(41)


def test_a_repeated_prompt_is_found_but_for_its_last_token() -> None:
    cache = PrefixCache(10, SIZE)
    assert served(cache, request(1, list(range(9)))) == 0
    assert served(cache, request(2, list(range(9)))) == 8
    # All of eight tokens are in full blocks; the last one has to be computed, and with it its block.
    assert served(cache, request(3, list(range(8)))) == 4


def test_a_prompt_that_differs_from_the_start_finds_nothing() -> None:
    cache = PrefixCache(10, SIZE)
    served(cache, request(1, list(range(9))))
    assert served(cache, request(2, [99, *range(1, 9)])) == 0


def test_a_prefix_that_is_in_use_is_shared_and_survives_the_first_to_leave() -> None:
    cache = PrefixCache(6, SIZE)
    one, two = request(1, list(range(9))), request(2, list(range(9)))
    assert cache.adopt(one, 9) == 0 and cache.grow(one, 9)
    cache.computed(one, 9)
    assert cache.adopt(two, 9) == 8 and cache.grow(two, 9)
    assert cache.free == 2, "two blocks are shared, one each is not"
    cache.release(one)
    assert cache.free == 3
    cache.release(two)
    assert cache.free == 6


def test_the_block_that_was_given_back_longest_ago_is_handed_out_first() -> None:
    cache = PrefixCache(4, SIZE)
    served(cache, request(1, [1] * 5))
    served(cache, request(2, [2] * 5))
    # Used again, so the second is the older one now.
    assert served(cache, request(1, [1] * 5)) == 4
    three = request(3, [3] * 9)
    assert cache.adopt(three, 9) == 0 and cache.grow(three, 9)
    cache.release(three)
    assert served(cache, request(4, [1] * 5)) == 4
    assert served(cache, request(5, [2] * 5)) == 0


def test_blocks_that_nobody_can_find_are_handed_out_before_those_that_can_be_found() -> None:
    cache = PrefixCache(3, SIZE)
    served(cache, request(1, [1] * 5))
    for id in range(2, 20):
        assert served(cache, request(id, [id] * 3)) == 0
    assert served(cache, request(20, [1] * 5)) == 4


def test_a_request_that_does_not_fit_holds_nothing() -> None:
    cache = PrefixCache(3, SIZE)
    served(cache, request(1, [1] * 8))
    big = request(2, [1] * 8 + [2] * 8)
    assert cache.adopt(big, 16) is None
    assert (cache.free, big.held) == (3, 0)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)


@given(blocks=st.integers(8, 20), script=st.lists(st.tuples(prompts, st.booleans()), max_size=40))
def test_no_block_is_lost_or_has_two_contents_whatever_happens(
    blocks: int, script: list[tuple[list[int], bool]]
) -> None:
    cache = PrefixCache(blocks, SIZE)
    running: list[Request] = []
    contents: dict[int, tuple[int, ...]] = {}
    for id, (tokens, leaves) in enumerate(script):
        if leaves and running:
            cache.release(running.pop(0))
        one = request(id, tokens)
        found = cache.adopt(one, len(tokens))
        if found is None:
            assert cache.free < -(-len(tokens) // SIZE)
            continue
        assert found < len(tokens) and found % SIZE == 0
        for block, start in zip(one.blocks, range(0, found, SIZE), strict=True):
            assert contents[block] == tuple(tokens[: start + SIZE]), "what is found is what was asked for"
        assert cache.grow(one, len(tokens))
        in_use = [block for other in running for block in other.blocks]
        assert not set(one.blocks[found // SIZE :]) & set(in_use), "a new block is nobody else's"
        cache.computed(one, len(tokens))
        for number, block in enumerate(one.blocks):
            contents[block] = tuple(tokens[: (number + 1) * SIZE])
        running.append(one)
        held = {block for other in running for block in other.blocks}
        assert cache.free == blocks - len(held)
    for one in running:
        cache.release(one)
    assert cache.free == blocks
