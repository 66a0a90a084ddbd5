"""The command ``slowlink``. What a subcommand needs is imported when it runs."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowlink.testbed.cache import keep

ROOT = Path(__file__).parents[1]
"""The repository, where this is a checkout."""

MOST_VALUES = 10**8
"""Of a tensor that is made to show what a codec sends."""

EXAMPLES = """examples:
  slowlink advise --model resnet50 --workers 16 --wan 155M --lan 1G
  slowlink measure train:build --out mine
  slowlink links --listen 5555                      on one host, and on another:
  slowlink links one.example:5555 --cluster-file cluster.yaml
  slowlink advise --model-file mine.model.yaml --device-file mine.device.yaml \\
      --cluster-file cluster.yaml
  slowlink train recipe.yaml
  slowlink methods compression/top_k
  slowlink report matrix"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 2 for what the user can mend, said in one line."""
    if arguments is None:
        keep()
        arguments = sys.argv[1:]
    parser = argparse.ArgumentParser(
        "slowlink",
        description="Which way of exchanging gradients is fastest on my links?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.about)
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments)  # helps, or says what is wrong
    name, *rest = arguments
    try:
        return COMMANDS[name].run(rest, f"slowlink {name}") or 0
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        return _ended(name, f"{file}{error.strerror or error or type(error).__name__}")
    except ValueError as error:
        # An error of several lines says the most in its first one.
        return _ended(name, (str(error) or type(error).__name__).splitlines()[0])
    except ModuleNotFoundError as error:
        needs = (error.name or "slowlink").partition(".")[0]
        if needs == "slowlink":
            raise
        extra = EXTRAS.get(needs, COMMANDS[name].extra)
        return _ended(name, f'needs {needs}; install it with: pip install "slowlink[{extra}]"')
    except KeyboardInterrupt:
        return _ended(name, "interrupted", 130)


def _ended(name: str, why: str, status: int = 2) -> int:
    wipe = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{wipe}slowlink {name}: {why}", file=sys.stderr)
    return status


def _parser(program: str, about: str, *examples: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        program,
        description=about,
        epilog="examples:\n  " + "\n  ".join(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of them; at least 1")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; say 0.5")


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+([x,]\d+)*", text) or "0" in re.split("[x,]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; say 3x224x224")
    return tuple(map(int, re.split("[x,]", text)))


# advise -------------------------------------------------------------------------------------------


def advise(arguments: Sequence[str], program: str) -> None:
    from slowlink.workflow.matrix import advice

    advice.main(arguments, program)


# measure ------------------------------------------------------------------------------------------


def measure(arguments: Sequence[str], program: str) -> None:
    parser = _parser(
        program,
        "Time a model's forward and backward pass, tensor by tensor, and every codec on its "
        "tensors, on this device. Writes OUT.model.yaml and OUT.device.yaml for slowlink advise.",
        "slowlink measure train:build --out mine      build() in train.py returns (model, batch, "
        "loss)",
        "slowlink measure train:net --input 3x224x224 --batch 16 --device cuda",
        'slowlink measure resnet20 --codecs "top_k|power_sgd|fp16"',
    )
    add = parser.add_argument
    add("model", help="module:function that returns a model, (model, batch) or (model, batch, "
        "loss), where loss(model, batch) is a number; or a model of slowlink")  # fmt: skip
    add("--batch", type=_count, help="samples, where the function returns a model alone; 32")
    add("--input", type=_shape, help="shape of a sample, where it returns a model alone")
    add("--codecs", help="only these, as top_k|fp16; all if not given, none for none")
    add("--device", default="cpu", help="cpu, cuda or cuda:1; cpu")
    add("--threads", type=_count, help="of the processor, for computing and coding")
    add("--repeats", type=_count, default=20, help="of an iteration; a quarter of a codec; 20")
    add("--out", type=Path, help="beginning of both files' names; the model's name")
    options = parser.parse_args(arguments)

    import torch

    from slowlink.testbed import given
    from slowlink.testbed.terminal import show
    from slowlink.testbed.training import own

    if options.threads:
        torch.set_num_threads(options.threads)
    device = _device(options.device)
    codecs = _codecs(options.codecs)
    show(f"making {options.model}")
    asked = own.subject(options.model, options.batch, options.input, device)
    show(f"timing {options.repeats} iterations of {options.model}")
    model = own.measure_model(asked, options.repeats)
    repeats = max(3, options.repeats // 4)
    profile = own.measure_device(model, codecs, device, repeats, show)
    show("")
    stem = str(options.out or re.sub(r"\W+", "_", options.model))
    stem = re.sub(r"\.ya?ml$", "", stem)
    files = Path(f"{stem}.model.yaml"), Path(f"{stem}.device.yaml")
    head = f"made by: {program} {' '.join(arguments)}\nfields: docs/measuring.md"
    given.write(files[0], head, model)
    given.write(files[1], head, {re.sub(r"\W+", "_", Path(stem).name): profile})

    from slowlink.testbed.units import said_s

    low, high = model.spread
    iteration_s = model.batch / model.samples_per_s
    print(
        f"{len(model.tensors)} tensors, {sum(model.layers.sizes):,} values; an iteration of "
        f"{model.batch} samples takes {said_s(iteration_s)} ({low:.0%} to {high:.0%} of it at the "
        f"quartiles), {model.samples_per_s:.4g} samples/s."
    )
    for note in model.measured.notes:
        print(note)
    sizes = [4.0 * values for values in model.layers.sizes]
    for name, cost in profile.known.items():
        whole = sum(map(cost.seconds, sizes))
        print(
            f"  {name}: {said_s(whole)} to code the model, {cost.spread[0]:.0%} to "
            f"{cost.spread[1]:.0%} at the quartiles"
        )
    print(
        f"Wrote {files[0]} and {files[1]}. Next: slowlink advise --model-file {files[0]} "
        f"--device-file {files[1]} --workers 8 --lan 1G"
    )


def _device(name: str) -> str:
    import torch

    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise ValueError(f"--device {name}: say cpu, cuda or cuda:1")
    if name.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(name.partition(":")[2] or 0) >= count:
            print(f"there is no {name} here ({count} GPUs); measuring the processor",
                  file=sys.stderr)  # fmt: skip
            return "cpu"
    return name


def _codecs(chosen: str | None) -> dict[str, Any]:
    """Every codec that advice may ask about, by a name of its own: one for each kind of work, with
    the matrix's parameters."""
    from slowlink.testbed.prices import load_codec
    from slowlink.testbed.training import device
    from slowlink.testbed.training.recipe import Part
    from slowlink.workflow.matrix import advice
    from slowlink.workflow.named import known

    given = advice.recipe()
    if chosen == "none":
        return {}
    names = known("compression") if chosen is None else tuple(chosen.split("|"))
    if strange := [name for name in names if name not in known("compression")]:
        raise ValueError(
            f"--codecs: {strange[0]!r} is none of {', '.join(known('compression'))}; join several "
            'with |, as "top_k|fp16"'
        )
    parts = [Part(name=name, **given.options.get(name, {})) for name in names]
    parts += [
        codec
        for system in given.found().values()
        for level in system.levels
        for codec in (level.up, level.down)
        if codec and codec.name in names
    ]
    found: dict[Any, Part] = {}
    for part in parts:
        found.setdefault(device.work(load_codec(part)), part)
    made: dict[str, Part] = {}
    for part in found.values():
        count = sum(one.name == part.name for one in made.values())
        made[f"{part.name}_{count + 1}" if count else part.name] = part
    return made


# links --------------------------------------------------------------------------------------------


def links(arguments: Sequence[str], program: str) -> None:
    parser = _parser(
        program,
        "Measure rate and latency between hosts, over the TCP connections that live plans use. "
        "Anyone who reaches a listening port can make it send: listen in networks you trust.",
        "slowlink links --listen 5555                            on the other hosts",
        "slowlink links hospital=10.0.0.2:5555 branch=10.1.0.2:5555 --cluster-file cluster.yaml",
        "slowlink links 10.0.0.2:5555 10.0.0.3:5555 --flat --cluster-file rack.yaml",
        "nvidia-smi topo -m | slowlink links --topo - --cluster-file host.yaml",
    )
    add = parser.add_argument
    add("hosts", nargs="*", metavar="[NAME=]HOST:PORT", help="hosts that listen")
    add("--listen", type=int, metavar="PORT", help="answer those that measure; 0 for any port")
    add("--once", action="store_true", help="stop listening after the first host is done")
    add("--here", help="this host's name in the cluster file; its host name")
    add("--flat", action="store_true", help="the hosts are workers around one switch, not sites")
    add("--cluster-file", type=Path, help="is updated with what is measured, or made")
    add("--topo", metavar="FILE", help="what nvidia-smi topo -m prints, - for standard input")
    add("--seconds", type=_seconds, default=0.5, help="of the largest message; 0.5")
    add("--repeats", type=_count, default=7, help="of every size; 7")
    options = parser.parse_args(arguments)
    given = [options.listen is not None, bool(options.hosts), options.topo is not None]
    if sum(given) != 1:
        raise ValueError("give hosts to measure to, --listen PORT or --topo FILE; see --help")
    if options.topo is not None:
        _topo(options)
    elif options.listen is not None:
        _listen(options)
    else:
        _measure_links(options)


def _topo(options: argparse.Namespace) -> None:
    from slowlink.testbed.network import cluster

    if options.cluster_file is None:
        raise ValueError("--topo makes a cluster file: name it with --cluster-file host.yaml")
    try:
        text = sys.stdin.read() if options.topo == "-" else Path(options.topo).read_text()
        found = cluster.from_topo(text)
    except ValueError as error:
        raise ValueError(f"{options.topo}: {error}") from None
    cluster.save(found, options.cluster_file)
    print(f"{found.title}: {found}. {found.source}. Wrote {options.cluster_file}.")


def _listen(options: argparse.Namespace) -> None:
    from slowlink.testbed.live.links import Listener

    if not 0 <= options.listen < 2**16:
        raise ValueError(f"--listen {options.listen}: a port is below 65536")
    listener = Listener(options.listen)
    print(f"listening on port {listener.port}; end with Ctrl-C", flush=True)
    try:
        listener.serve(lambda text: print(text, flush=True), options.once)
    finally:
        listener.close()


def _measure_links(options: argparse.Namespace) -> None:
    import socket

    from slowlink.testbed.live.links import charged
    from slowlink.testbed.live.links import measure as measure_link
    from slowlink.testbed.network import cluster
    from slowlink.testbed.terminal import show
    from slowlink.testbed.units import said_rate, said_s

    here = options.here or socket.gethostname()
    file, known = options.cluster_file, None
    hosts = dict(map(_host, options.hosts))
    if len(hosts) < len(options.hosts) or here in hosts:
        raise ValueError("two hosts have one name; give each its own: NAME=HOST:PORT, --here NAME")
    if file and file.exists():
        known = cluster.load(file)
        if options.flat:
            raise ValueError(f"--flat makes a new cluster file; {file} is there already")
    paths = {}
    for name, (host, port) in hosts.items():
        paths[name] = measure_link(host, port, options.repeats, options.seconds, show)
        show("")
        path = paths[name]
        print(f"{here} to {name}: {_spread(path.up, said_rate)}")
        print(f"{name} to {here}: {_spread(path.down, said_rate)}")
        print(f"  round trip: {_spread(path.rtt, said_s)}")
        for size in sorted(path.sizes, key=lambda one: (one.way, one.nbytes), reverse=True):
            arrow = "to" if size.way == "up" else "from"
            print(
                f"  {size.nbytes:,} bytes {arrow} {name}: {_spread(size.seconds, said_s)}, "
                f"{said_rate(size.rate)}"
            )
    if file:
        found = charged(known, here, paths, options.repeats, options.flat)
        cluster.save(found, file)
        print(f"Wrote {file}: {found}.")
        if known is None and not options.flat:
            print("Every site has one worker there: edit workers, card and speeds.")


def _host(text: str) -> tuple[str, tuple[str, int]]:
    found = re.fullmatch(r"(?:([^=]+)=)?\[?([^=\[\]]+?)\]?:(\d+)", text)
    if not found or not 0 < int(found[3]) < 2**16:
        raise ValueError(f"{text!r} is no host with a port; say HOST:PORT or NAME=HOST:PORT")
    return found[1] or found[2], (found[2], int(found[3]))


def _spread(value: Any, said: Callable[[float], str]) -> str:
    return f"{said(value.median)} ({said(value.low)} to {said(value.high)})"


# train --------------------------------------------------------------------------------------------


def train(arguments: Sequence[str], program: str) -> int:
    from slowlink.testbed.live.engine.__main__ import main

    return main(arguments, program)


# methods ------------------------------------------------------------------------------------------


def methods(arguments: Sequence[str], program: str) -> None:
    parser = _parser(
        program,
        "The methods: what is compared, room by room; all about one that is named.",
        "slowlink methods",
        "slowlink methods compression --shape 1024x1024",
        "slowlink methods compression/top_k",
    )
    add = parser.add_argument
    add("which", nargs="?", default="", metavar="ROOM[/NAME]", help="only these")
    add("--shape", type=_shape, default=(1000, 1000), help="of the example tensor; 1000x1000")
    options = parser.parse_args(arguments)

    from slowlink.methods import compression, exchange, fusion, synchronization

    rooms = {
        "exchange": (exchange, "who sends to whom"),
        "compression": (compression, "what is sent"),
        "synchronization": (synchronization, "when workers meet"),
        "fusion": (fusion, "which tensors travel together"),
    }
    room, _, name = options.which.partition("/")
    if room and room not in rooms:
        raise ValueError(f"no room {room!r}; there are: {', '.join(rooms)}")
    if name:
        print("\n".join(_card(rooms[room][0], name, options.shape)))
        return
    for label, (module, question) in rooms.items():
        if room in ("", label):
            print(f"{label}: {question}")
            for one in module.names():
                method = module.load(one)
                sent = ""
                if label == "compression":
                    sent = f" [{sum(method.payload_bytes(options.shape)):,} bytes]"
                print(f"  {one}{sent}: {method.summary}")
    if room in ("", "compression"):
        shape = " × ".join(map(str, options.shape))
        print(f"Bytes: at most, of all rounds, for a float32 tensor of {shape}.")


def _card(module: Any, name: str, shape: tuple[int, ...]) -> Iterator[str]:
    import dataclasses

    method = module.load(name)
    room = module.__name__.rpartition(".")[2]
    yield f"{room}/{name}: {method.summary}"
    yield f"  source: {method.source}"
    for field in dataclasses.fields(method):
        if field.init:
            kind = getattr(field.type, "__name__", field.type)
            yield f"  {field.name}: {kind} = {getattr(method, field.name)!r}"
    if room == "compression":
        yield f"  combines: {method.combine}" + ("" if method.one_shot else ", in several rounds")
        sent = method.payload_bytes(shape)
        most = "" if method.exact_bytes else "at most "
        values = math.prod(shape)
        yield (
            f"  bytes a round for {' × '.join(map(str, shape))}: {most}"
            f"{', '.join(f'{one:,}' for one in sent)} (plain float32: {4 * values:,})"
        )
        yield f"  on the wire: {_on_the_wire(method, shape, values)}"
    yield f'  load: slowlink.{room}.load("{name}")'


def _on_the_wire(codec: Any, shape: tuple[int, ...], values: int) -> str:
    """What an example becomes, unless it would not fit into this machine's memory."""
    if values > MOST_VALUES:
        return f"not tried with more than {MOST_VALUES:,} values"
    import torch

    generator = torch.Generator().manual_seed(0)
    payload, _ = next(codec.encode(torch.randn(shape, generator=generator), "example"))
    dtype = f" of {payload.dtype}" if payload.dtype else ""
    return f"{payload.form}{dtype}, {payload.nbytes:,} bytes of normal values"


# report -------------------------------------------------------------------------------------------


def report(arguments: Sequence[str], program: str) -> None:
    parser = _parser(
        program,
        "Run what the workflow makes, in a checkout of the repository, and say where the report "
        "is. What is there already is not run again.",
        "slowlink report --scale smoke             all of it on tiny settings",
        "slowlink report matrix --cores 4",
        "slowlink report --open --no-run",
    )
    add = parser.add_argument
    add("targets", nargs="*", help="of docs/targets.md; all of the report if none")
    add("--scale", choices=("smoke", "desk", "paper"), default="desk")
    add("--cores", type=_count, default=2)
    add("--open", action="store_true", help="the report in a browser")
    add("--no-run", action="store_true", help="only say where the report is")
    options = parser.parse_args(arguments)
    if not (ROOT / "Snakefile").is_file():
        raise ValueError(
            "reports are made in a checkout of the repository, which this is not: clone it, and "
            "run slowlink report there"
        )
    if not options.no_run:
        command = [sys.executable, "-m", "snakemake", "--cores", str(options.cores)]
        command += [*options.targets, "--config", f"scale={options.scale}"]
        if status := subprocess.run(command, cwd=ROOT).returncode:
            raise ValueError(
                f"snakemake ended with {status}; it says above what failed, and the same command "
                "goes on from there"
            )
    index = ROOT / "reports" / "html" / options.scale / "index.html"
    if not index.is_file():
        raise ValueError(
            f"there is no report in {index.parent} yet; run slowlink report --scale {options.scale}"
        )
    print(f"report: {index}")
    if options.open:
        import webbrowser

        webbrowser.open(index.as_uri())


@dataclass(frozen=True)
class Command:
    """``run(arguments, program)``, which may return an exit status; what help says; and the extra
    that has what it always imports."""

    run: Callable[[Sequence[str], str], int | None]
    about: str
    extra: str = "suite"


EXTRAS = {"cyclonedds": "dds", "cryptography": "dds", "ray": "ray"}
"""What only some runs of a command import, by the extra that has it."""

COMMANDS = {
    "advise": Command(advise, "which method for my model, machines and links?"),
    "measure": Command(measure, "time a model and every codec on this device"),
    "links": Command(links, "measure rates and latencies between hosts", "live"),
    "train": Command(train, "train with real processes over real links", "live"),
    "methods": Command(methods, "what there is, with parameters and bytes"),
    "report": Command(report, "run the suite and say where its report is"),
}
