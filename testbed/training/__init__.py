"""Training: models, data, device profiles and the virtual-time trainer."""

from testbed.training.trainer import train

__all__ = ["train"]
