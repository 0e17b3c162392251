"""The counter-based generator in plain Python integers: slow, unsigned, independent of torch."""

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hash_of(family: int, *coordinates: int) -> int:
    state = mix(family)
    for value in coordinates:
        state = mix(state ^ ((value * 0x9E3779B97F4A7C15) & MASK))
    return state


def uniform(seed: int, draw: int, prompt_id: int, sample_index: int, position: int) -> float:
    return (2 * (hash_of(1, seed, draw, prompt_id, sample_index, position) >> 12) + 1) / 2**53


def permutation(seed: int, epoch: int, n: int) -> list[int]:
    def signed(x: int) -> int:
        return x - (1 << 64) if x >> 63 else x

    return sorted(range(n), key=lambda row: signed(hash_of(2, seed, epoch, row)))
