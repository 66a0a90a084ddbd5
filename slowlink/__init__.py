"""Communication-efficient distributed training: the methods, what they cost, and how they compare.

``slowlink.compression``, ``slowlink.exchange``, ``slowlink.synchronization`` and
``slowlink.fusion`` are the rooms of methods; each has ``names()`` and ``load(name, **parameters)``.
``slowlink.torch`` puts them into an own PyTorch training; ``slowlink.run`` trains a model of one's
own on a live system of them.
"""

from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

# In a wheel the rooms lie inside this folder, in a checkout beside it.
_HERE = Path(__file__).parent
if not (_HERE / "methods").is_dir():
    __path__.append(str(_HERE.parent))

_ROOMS = ("compression", "exchange", "synchronization", "fusion")


def __getattr__(name: str):
    """A room of methods, the hooks for torch, or ``run``, imported when first asked for."""
    if name in _ROOMS:
        return import_module(f"slowlink.methods.{name}")
    if name == "torch":
        return import_module("slowlink.torch")
    if name == "run":
        return import_module("slowlink.testbed.live.engine.own").run
    raise AttributeError(f"module 'slowlink' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, "run", "torch"})
