"""What the process that jobs are forked from imports: the packages that take long, and all that
documents and the matrix declare."""

import gc

import matplotlib.pyplot  # noqa: F401
import numba  # noqa: F401
import pyarrow.parquet  # noqa: F401
import scipy.stats  # noqa: F401
import seaborn  # noqa: F401
import torch  # noqa: F401

from slowlink.reports import html  # noqa: F401
from slowlink.workflow import run, settings  # noqa: F401

settings.wings()
# What lies still is not touched by the collector, so that forks go on sharing its pages.
gc.freeze()
