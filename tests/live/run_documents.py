"""Live runs as plain data: what most tests of the engine say of a run."""

from pathlib import Path


def part(given):
    """By its name alone, or with parameters."""
    return given if isinstance(given, dict) else {"name": given}


def functions(module, **names):
    """References to functions of this module, for fields of ``own``."""
    return {field: f"{Path(module.__file__).resolve()}:{name}" for field, name in names.items()}


def document(folder, own, training, /, **changes):
    """A run of functions; workers meet at a server, unless ``training`` says otherwise. Of the
    ``changes``, ``training``, ``own`` and ``limits`` change some of their fields only."""
    usual = dict(
        exchange=part("parameter_server"),
        levels=[{"up": part("identity")}],
        synchronization=part("bsp"),
    )
    whole = dict(
        training=usual | training | changes.pop("training", {}),
        own=own | changes.pop("own", {}),
        limits=dict(silence_s=600) | changes.pop("limits", {}),
        output=str(folder / "out"),
    )
    return whole | changes
