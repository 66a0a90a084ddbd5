"""What the process that others are forked from has done for all of them: numba's first call, which
makes what it needs for any, and takes longer than a client's first step."""

import torch

from slowlink.testbed.training.pooling import MaxPool

MaxPool()(torch.zeros(1, 1, 2, 2))
