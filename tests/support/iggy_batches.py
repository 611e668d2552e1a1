"""An encoder of batches for the server's tests, written from the wire's description alone: the oracle."""

import struct

import xxhash


def frame(number, payload, *, headers=b"", message_id=0):
    covered = message_id.to_bytes(16, "little")
    covered += struct.pack("<IIII", number, 0, len(headers), len(payload)) + bytes(8) + payload + headers
    return xxhash.xxh3_64(covered).digest()[::-1] + covered


def encode_batch(payloads, *, headers=b"", origin=1_700_000_000_000_000):
    """Return a batch as a client sends it: partition, base offset and base timestamp are zero."""
    return assemble(
        [frame(i, payload, headers=headers, message_id=i + 1) for i, payload in enumerate(payloads)], origin=origin
    )


def assemble(frames, *, origin=0, behind=b""):
    """Return a batch of the given frames, with bytes behind them that its checksum covers only as a length."""
    length = 256 + sum(map(len, frames)) + len(behind)
    fields = struct.pack("<QQQQQ", 0, 0, 0, origin, length)
    hasher = xxhash.xxh3_64(fields + struct.pack("<I", len(frames)))
    for one in frames:
        hasher.update(one[:8])
    checksum = hasher.digest()[::-1]
    return bytearray(fields + checksum + struct.pack("<I", len(frames)) + bytes(204) + b"".join(frames) + behind)


def decode_batches(data):
    """Return (base offset + delta, payload) of every message in batches laid end to end."""
    data, messages = bytes(data), []
    while data:
        base, length, count = (*struct.unpack_from("<8xQ16xQ", data), struct.unpack_from("<48xI", data)[0])
        position = 256
        for _ in range(count):
            delta, headers_length, payload_length = struct.unpack_from("<24xI4xII", data, position)
            messages.append((base + delta, data[position + 48 : position + 48 + payload_length]))
            position += 48 + headers_length + payload_length
        assert position == length, "the frames fill the batch"
        data = data[length:]
    return messages
