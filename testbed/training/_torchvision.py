"""Import torchvision where torch is a CPU build whose torchvision wheel has no compiled operators.

Such a pair fails at ``import torchvision`` because two operator schemas are missing. Declaring
them lets models, datasets and transforms work; the operators themselves (nms) stay unusable.
"""

from __future__ import annotations

import torch
from torch import library as operators

_libraries = []  # torch forgets an operator when its Library object is collected


def _declare_missing_operators() -> None:
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = operators.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


try:
    import torchvision
except RuntimeError:
    _declare_missing_operators()
    import torchvision

__all__ = ["torchvision"]
