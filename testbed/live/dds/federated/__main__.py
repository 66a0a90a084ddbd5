"""Commands: ``python -m testbed.live.dds.federated controller|client FILE``.

``FILE`` is JSON: :class:`.settings.ControllerSettings` or :class:`.settings.ClientSettings`. The
secret comes from the file named there or the environment, never from the command line. Ends with
status 2 where the configuration is refused, 1 where the training fails.
"""

from __future__ import annotations

import argparse
import sys

from testbed.live.dds.federated import client, controller
from testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, read
from testbed.training.fetch import DataUnavailable
from testbed.training.learner import Diverged


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m testbed.live.dds.federated")
    parser.add_argument("role", choices=["controller", "client"])
    parser.add_argument("file", help="configuration, JSON")
    given = parser.parse_args(arguments)
    kind, run = {
        "controller": (ControllerSettings, controller.run),
        "client": (ClientSettings, client.run),
    }[given.role]
    try:
        settings = read(given.file, kind)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        run(settings)
    except (ValueError, OSError, Diverged, DataUnavailable) as error:
        print(f"{given.role}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
