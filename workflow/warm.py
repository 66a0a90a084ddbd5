"""What the process that jobs are forked from imports: the packages that take long, and all that
documents and the matrix declare."""

import gc

import matplotlib.pyplot  # noqa: F401
import numba  # noqa: F401
import pyarrow.parquet  # noqa: F401
import scipy.stats  # noqa: F401
import seaborn  # noqa: F401
import torch
import torch._dynamo  # noqa: F401, which torch imports when it first counts operations

from slowlink.reports import html  # noqa: F401
from slowlink.testbed.training import _torchvision, pooling  # noqa: F401
from slowlink.workflow import settings

settings.wings()
# Numba sets up its compiler when it first runs anything.
pooling.MaxPool()(torch.zeros(1, 1, 2, 2))
# What lies still is not touched by the collector, so that forks go on sharing its pages.
gc.freeze()
