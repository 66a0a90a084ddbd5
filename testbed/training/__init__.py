"""Training: models, data, device profiles and the virtual-time trainer."""

from __future__ import annotations

from typing import Any

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for, so that fetching data does not wait for torch's networks.
    if name == "train":
        from testbed.training.trainer import train

        return train
    raise AttributeError(name)
