"""Train with real processes, or be one of them.

``FILE`` is JSON or YAML, see testbed/live/engine/settings.py. Without ``--node`` all members start
as processes of this machine; ``run.json`` in the output folder then has all addresses. On several
machines each member is started with ``--node`` from one file with the coordinator's address. Ends
with status 2 where the settings are refused, 1 where the run fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Before numpy is imported, whose library would start threads: members share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from slowlink.testbed.live import fork_server, identity
from slowlink.testbed.live.engine import launch, on_ray, settings

RAY = (
    "let Ray place the members: on the cluster at this address, `auto` for that of this machine, "
    "`local` for one that starts here"
)


def main(argv: Sequence[str] | None = None, prog: str = f"python -m {launch.PACKAGE}") -> int:
    """Run the command; its exit status."""
    first, _, rest = __doc__.replace("``", "").partition("\n\n")
    example = settings.__doc__.partition("for instance::\n\n")[2]
    parser = argparse.ArgumentParser(
        prog=prog,
        description=f"{first}\n\n{rest}",
        epilog=f"examples:\n\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="settings, JSON or YAML")
    parser.add_argument("--node", metavar="NAME", help="be only this member, or coordinator")
    parser.add_argument("--ray", metavar="ADDRESS", help=RAY)
    parser.add_argument("--record", metavar="PATH", help="keep what the policy was told, as JSON")
    parser.add_argument("--make-keys", action="store_true", help="only fill the folder `keys`")
    parser.add_argument("--attached", action="store_true", help="end when standard input does")
    given = parser.parse_args(argv)
    launches = given.node is None and not (given.ray or given.make_keys)
    # Members are forks of this process then, which has imported what they need.
    forks = launches and fork_server.one_thread()
    with fork_server.forked() if forks else contextlib.nullcontext():
        return _run(given, prog)


def _run(given: argparse.Namespace, prog: str) -> int:
    try:
        # Who starts a member so, with the other end of its standard input, has checked the file.
        run = settings.read(given.file, checked=given.attached and given.node is not None)
        if given.make_keys:
            identity.make(run.keys or Path("keys"), run.members)
            return 0
        if given.record and run.network:
            raise ValueError("--record: on shaped links the coordinator keeps no record")
        if given.record and not Path(given.record).resolve().parent.is_dir():
            raise ValueError(f"--record: there is no folder for {given.record}")
    except (ValueError, OSError) as error:
        for line in str(error).splitlines():
            print(f"{prog}: {line}", file=sys.stderr)
        return 2
    launch.set_up_logs()

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk, and rows are worth more than progress
            print(line, flush=True)

    try:
        if given.attached:
            fork_server.attach()
        if given.node is None:
            recorded = bool(given.record)
            if given.ray:
                address = None if given.ray == "local" else given.ray
                ended = on_ray.run_all(run, say, address, recorded)
            else:
                ended = launch.run_all(run, say, recorded=recorded)
            if given.record:
                ended.record.save(given.record)
        elif given.node == settings.COORDINATOR:
            # Whoever has started all members has the folders, too.
            with contextlib.nullcontext() if given.attached else launch.alone(run):
                launch.run_coordinator(run, say)
        else:
            launch.run_node(run, given.node)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        usual = RuntimeError | ValueError | OSError | ArithmeticError
        if given.attached:  # else the command says how to install what is missing
            usual |= ModuleNotFoundError
        if not isinstance(error, usual):
            raise
        said = f"{given.node + ': ' if given.node else ''}{error}"
        if given.attached:
            fork_server.tell(said)
        print(said, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
