"""DDS domains for tests; a module of its own."""

import itertools
import random

from slowlink.testbed.live.dds.domain import DRAWN

_DRAWN = itertools.cycle(random.SystemRandom().sample(DRAWN, len(DRAWN)))


def fresh() -> int:
    """A domain that this process has not entered yet: it may enter each only once at a time."""
    return next(_DRAWN)
