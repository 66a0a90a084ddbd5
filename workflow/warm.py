"""What the process that jobs are forked from imports: the packages that take long, and all that
documents and the matrix declare."""

# ruff: noqa: E402, since something stands before imports

import gc

gc.disable()  # what is imported stays, and looking for garbage in it takes a quarter of the time

import matplotlib.pyplot  # noqa: F401
import numba  # noqa: F401
import pyarrow.parquet  # noqa: F401
import scipy.stats  # noqa: F401
import seaborn  # noqa: F401
import torch._dynamo  # noqa: F401, which torch imports when it first counts operations

from slowlink.methods import exchange
from slowlink.reports import html  # noqa: F401
from slowlink.testbed import network, prices
from slowlink.testbed.training import _torchvision  # noqa: F401
from slowlink.workflow import settings

settings.wings()
# Numba starts when it first runs anything. What simulates networks takes ten seconds to compile the
# first time: once here, and not in every job that begins beside others.
star = network.star(2, 1e9)
prices.exchange_s(exchange.load("ring")(star), star, [{}], 1.0)
# What lies still is not touched by the collector, so that forks go on sharing its pages.
gc.freeze()
gc.enable()
