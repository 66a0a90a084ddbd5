"""Training: models, data, device profiles and the virtual-time trainer."""

from __future__ import annotations

from typing import Any

__all__ = ["train", "train_all"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for, so that fetching data does not wait for torch's networks.
    if name in __all__:
        from testbed.training import trainer

        return getattr(trainer, name)
    raise AttributeError(name)
