"""`python -m tests.corpora.mutated FOLDER`: files of corpora with some bytes changed. None may end the process or fill its memory.

Each is read in a process that does nothing else. What ends it, takes too much, or raises what is no error of an object is
reported and kept. Of Parquet, parts of the footer change, too, which keeps its length right.
"""

import argparse
import contextlib
import copy
import itertools
import os
import pathlib
import random
import resource
import signal
import struct
import sys
import time
import traceback

import attrs

from framework.errors import SourceError
from framework.transformer import InputOptions
from tests.corpora import thrift
from tests.corpora.__main__ import ADDRESS_BYTES, MOST_MEMORY, MOST_SECONDS, peak_bytes, readings, warm_up
from transformers import make_transformer
from transformers.local_inputs import BytesInput

MOST_BYTES = 60_000
"""Of a file: small ones are read by the thousand."""
BATCH = 40
"""Mutants that a process reads, as long as it lives."""
ODD = [0, 1, -1, 2, 127, 128, 255, 65_535, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)]


@attrs.frozen
class Mutant:
    """A changed file, and how it is read."""

    name: str
    data: bytes
    options: dict


def changed(data, chance):
    """Return a file with a few bytes changed, cut out, put in or copied; more often near its end."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        if not out:
            break
        near_end = len(out) > 600 and chance.random() < 0.5
        at = len(out) - 1 - chance.randrange(600) if near_end else chance.randrange(len(out))
        size = chance.choice((1, 2, 4, 8, 50))
        odd = (chance.choice(ODD) & (1 << 64) - 1).to_bytes(8, "little")[: min(size, 8)]
        other = chance.randrange(len(out))
        out[at : at + chance.choice((0, size))] = chance.choice(
            (b"", odd, odd[::-1], chance.randbytes(size), bytes(out[other : other + size]), bytes([out[at] ^ 1]))
        )
        if chance.random() < 0.1:
            del out[at:]
    return bytes(out)


def with_changed_footer(data, chance):
    """Return a Parquet file with some parts of its footer changed, left out, doubled or exchanged."""
    (size,) = struct.unpack("<I", data[-8:-4])
    tree, _ = thrift.parse(data[-8 - size : -8])
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        parts = list(_parts(tree))
        if parts:
            _change(*chance.choice(parts), chance, [value for _, _, value in parts])
    footer = thrift.write(tree)
    return data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _parts(value):
    """Yield (list, place in it, value) of everything inside a value."""
    kind, content = value
    inside = content if kind == thrift.STRUCT else content[1] if kind in thrift.LISTS else ()
    for place, part in enumerate(inside):
        inner = part[1] if kind == thrift.STRUCT else part
        yield inside, place, inner
        yield from _parts(inner)


def _change(inside, place, value, chance, others):
    kind, content = value

    def put(new):
        if isinstance(inside[place], list):
            inside[place][1] = new
        else:
            inside[place] = new

    way = chance.randrange(4)
    if way == 0:
        del inside[place]
    elif way == 1:
        put(copy.deepcopy(chance.choice([other for other in others if other[0] == kind])))
    elif kind in thrift.NUMBERS:
        put((kind, chance.choice((*ODD, content + 1, content - 1, 2 * content))))
    elif kind == thrift.BINARY:
        put((kind, chance.choice((b"", 2 * content, content[:-1], b"a.b", b"\xff"))))
    elif kind in thrift.LISTS and content[1]:
        values = content[1]
        at = chance.randrange(len(values))
        if way == 2:
            values.insert(at, copy.deepcopy(chance.choice(values)))
        else:
            chance.shuffle(values)


def mutants(files, chance):
    """Yield mutants without end."""
    for number in itertools.count():
        path, options, data = chance.choice(files)
        change = changed
        if options["format"] == "parquet" and chance.random() < 0.7:
            change = with_changed_footer
        with contextlib.suppress(Exception):  # a footer that is no tree already
            yield Mutant(f"{number}-{path.name}", change(data, chance), options)


def look(mutant):
    """Return what is wrong with the reading of a mutant; empty when all is well."""
    memory, begun = peak_bytes(), time.process_time()
    try:
        for _ in make_transformer(InputOptions(**mutant.options)).read(BytesInput(mutant.data, mutant.name)):
            pass
    except SourceError:
        pass
    except BaseException:  # noqa: BLE001 - a report
        return traceback.format_exc()[-900:]
    seconds, more = time.process_time() - begun, peak_bytes() - memory
    return f"it took {more >> 20} MiB and {seconds:.1f} seconds" if more > MOST_MEMORY or seconds > MOST_SECONDS else ""


def read_all(batch):
    """Yield (mutant, what is wrong) of a batch, each read in a child, which is begun anew behind one that ended it."""
    while batch:
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            _read_in_child(batch, theirs)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            said = pipe.read().split("\0")[:-1]
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for mutant, wrong in zip(batch, said):  # noqa: B905 - the last one may have said nothing
            if wrong:
                yield mutant, wrong
        if len(said) < len(batch):
            yield batch[len(said)], f"its process ended with {status}"
        batch = batch[len(said) + 1 :]


def _read_in_child(batch, pipe):
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # polars' panics
        for mutant in batch:
            signal.alarm(10 * MOST_SECONDS)
            os.write(pipe, look(mutant).encode() + b"\0")
    finally:
        os._exit(0)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.corpora.mutated", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mutants", type=int, default=20_000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(".mutated"), help="folder for what was found")
    given = parser.parse_args(arguments)
    paths = [path for path in sorted(given.folder.rglob("*")) if path.is_file() and path.stat().st_size <= MOST_BYTES]
    files = [(path, options, path.read_bytes()) for path in paths for _, options in readings(path)]
    warm_up()
    source, found = mutants(files, random.Random(given.seed)), 0
    for begin in range(0, given.mutants, BATCH):
        batch = [next(source) for _ in range(min(BATCH, given.mutants - begin))]
        for mutant, wrong in read_all(batch):
            found += 1
            given.out.mkdir(exist_ok=True)
            kept = given.out / f"{given.seed}-{begin}-{mutant.name}"
            kept.write_bytes(mutant.data)
            print(f"{kept} as {mutant.options}: {wrong}", flush=True)
    print(f"{given.mutants} mutants of {len(files)} readings, seed {given.seed}: {found} found")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
