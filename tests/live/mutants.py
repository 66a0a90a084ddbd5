"""Bytes that were changed on their way."""

import operator
import random


def mutants(whole: bytes, count: int, seed: int = 0, same=operator.eq):
    """``whole`` with some bytes changed, left out or put in, each other than it, by ``same``."""
    draw = random.Random(seed)
    while count:
        data = bytearray(whole)
        kind = draw.randrange(5)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data)) if data else 0
            if kind == 0 and data:
                data[at] ^= 1 << draw.randrange(8)
            elif kind == 1 and data:
                data[at] = draw.randrange(256)
            elif kind == 2:
                del data[at : at + draw.randint(1, 8)]
            elif kind == 3:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
            else:
                del data[at:]
        if not same(bytes(data), whole):
            count -= 1
            yield bytes(data)
