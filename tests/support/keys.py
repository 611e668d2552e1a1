"""The partition of a key, computed without the product: XXH32 as its specification describes it."""

_PRIMES = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def _rotated(value, count):
    return (value << count | value >> 32 - count) & _MASK


def _round(lane, word):
    return _rotated((lane + word * _PRIMES[1]) & _MASK, 13) * _PRIMES[0] & _MASK


def xxh32(data):
    """Return the hash with seed 0."""
    at, size = 0, len(data)
    if size >= 16:
        lanes = [(_PRIMES[0] + _PRIMES[1]) & _MASK, _PRIMES[1], 0, -_PRIMES[0] & _MASK]
        while at + 16 <= size:
            words = [int.from_bytes(data[at + 4 * lane : at + 4 * lane + 4], "little") for lane in range(4)]
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 16
        value = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        value = _PRIMES[4]
    value = (value + size) & _MASK
    while at + 4 <= size:
        value = (value + int.from_bytes(data[at : at + 4], "little") * _PRIMES[2]) & _MASK
        value = _rotated(value, 17) * _PRIMES[3] & _MASK
        at += 4
    for byte in data[at:]:
        value = _rotated((value + byte * _PRIMES[4]) & _MASK, 11) * _PRIMES[0] & _MASK
    value ^= value >> 15
    value = value * _PRIMES[1] & _MASK
    value ^= value >> 13
    value = value * _PRIMES[2] & _MASK
    return value ^ value >> 16


def partition_of_key(text, partitions):
    """Return the partition of a key."""
    return xxh32(text.encode()) % partitions
