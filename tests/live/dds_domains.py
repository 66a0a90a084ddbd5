"""DDS domains for tests; a module of its own."""

import itertools
import random

from slowlink.testbed.live.dds.domain import DRAWN, DomainConfig, connect

_DRAWN = itertools.cycle(random.SystemRandom().sample(DRAWN, len(DRAWN)))


def fresh() -> int:
    """A domain that this process is not in: it may enter each only once at a time, and what an
    earlier test has left to the collector may still be in one."""
    for domain in itertools.islice(_DRAWN, len(DRAWN)):
        try:
            connect(domain, DomainConfig())
        except ConnectionError:
            continue
        return domain
    raise RuntimeError("this process is in every domain")
