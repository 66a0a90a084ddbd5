"""DDS domains for tests; a module of its own."""

import itertools
import random

_DRAWN = itertools.cycle(random.SystemRandom().sample(range(1, 233), 232))


def fresh() -> int:
    """A domain that this process has not entered yet: it may enter each only once at a time."""
    return next(_DRAWN)
