"""Run a cluster of HiPS, or be one node of it.

``FILE`` is JSON or YAML, see testbed/live/hips/settings.py. Without ``--node`` all nodes start as
processes on this machine; ``cluster.json`` in the output folder then has all addresses, by which a
node that was lost, or a late one, can be started by hand. Ends with status 2 where the
configuration is refused, 1 where the run fails.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from slowlink.testbed.live.hips import launch, settings
from slowlink.testbed.live.identity import make


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    first, _, rest = __doc__.replace("``", "").partition("\n\n")
    example = settings.__doc__.partition("for instance::\n\n")[2]
    parser = argparse.ArgumentParser(
        prog="python -m slowlink.testbed.live.hips",
        description=f"{first}\n\n{rest}",
        epilog=f"for instance:\n\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="configuration, JSON or YAML")
    parser.add_argument("--node", metavar="NAME", help="be only this node, such as site1/worker0")
    parser.add_argument("--make-keys", action="store_true", help="only fill the folder `keys`")
    parser.add_argument("--attached", action="store_true", help="end when standard input does")
    given = parser.parse_args(arguments)
    try:
        trains = given.node is None or not given.node.endswith("/scheduler")
        cluster = settings.read(given.file, trains and not given.make_keys)
        if given.make_keys:
            make(cluster.keys or Path("keys"), cluster.everybody)
            return 0
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    launch.set_up_logs()
    try:
        if given.node is None:
            launch.run_all(cluster, math.inf, lambda line: print(line, flush=True))
        else:
            launch.run_node(cluster, given.node, given.attached)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(error, RuntimeError | ValueError | OSError | ArithmeticError):
            raise
        print(f"{given.node + ': ' if given.node else ''}{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
