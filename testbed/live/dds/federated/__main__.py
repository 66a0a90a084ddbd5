"""Commands: ``python -m slowlink.testbed.live.dds.federated controller|client FILE``.

``FILE`` is JSON: :class:`.settings.ControllerSettings` or :class:`.settings.ClientSettings`.
Ends with status 2 where the configuration is refused, 1 where the training fails.
"""

from __future__ import annotations

import argparse
import sys

from slowlink.testbed.live import fork_server
from slowlink.testbed.live.dds import domain
from slowlink.testbed.live.dds.federated import client, controller
from slowlink.testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, read
from slowlink.testbed.training.fetch import DataUnavailable
from slowlink.testbed.training.learner import Diverged


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m slowlink.testbed.live.dds.federated")
    parser.add_argument("role", choices=["controller", "client"])
    parser.add_argument("file", help="configuration, JSON")
    parser.add_argument("--attached", action="store_true", help="end when standard input does")
    given = parser.parse_args(arguments)
    if given.attached:
        fork_server.attach()
    kind, run = {
        "controller": (ControllerSettings, controller.run),
        "client": (ClientSettings, client.run),
    }[given.role]
    try:
        settings = read(given.file, kind)
        keys = domain.keys_folder(settings.keys, settings.network)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if keys is None:
        why = "keys: none are set, so whoever reaches this network can take part"
        print(f"{given.role}: {why}", file=sys.stderr, flush=True)
    try:
        run(settings)
    except (ValueError, OSError, Diverged, DataUnavailable) as error:
        print(f"{given.role}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
