"""What controller and clients compute, without any network; :func:`simulate` is all of it.

Source: DDS document, federated learning; what its text leaves open is as in its code (the samples
of a round, SGD that starts afresh, weights of the dense modes, zero baseline of the sparse ones).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import parameters_to_vector

from slowlink.methods import aggregation
from slowlink.methods.aggregation import Aggregation
from slowlink.methods.compression import Frame
from slowlink.testbed.live.dds import segments
from slowlink.testbed.live.dds.federated import checkpoint, messages
from slowlink.testbed.live.dds.federated.messages import Command, Update
from slowlink.testbed.live.dds.federated.settings import ANEW, ControllerSettings, Task
from slowlink.testbed.training import sampling, splits
from slowlink.testbed.training.batching import channels_last
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.learner import Diverged, fan_out

TEST_BATCH = 100

FRAGMENT = 64_000
"""Bytes of a sample in one datagram on the loopback, see :mod:`testbed.live.dds.domain`."""


@dataclass(frozen=True)
class Sent:
    """What one client sent in one round.

    Attributes
    ----------
    samples: that it trained on.
    payload_bytes: of the codec's own format, as documents print it.
    message_bytes: with the frame around it and the head of the message.
    frame_bytes: with the heads and tags of the segments; without DDS and UDP.
    link_bytes: with the heads of DDS, UDP, IP and Ethernet, see :func:`link_bytes`.
    train_s: training and encoding.
    communication_s: from publishing until the controller had it all, summed over packets; by the
        machine's clock, and so of clients on the controller's machine only.
    """

    samples: int
    payload_bytes: int
    message_bytes: int
    frame_bytes: int
    link_bytes: int
    train_s: float = math.nan
    communication_s: float = math.nan


@dataclass(frozen=True)
class Round:
    """A round as it went.

    Attributes
    ----------
    number: from 1.
    accuracy: of the new model on the test set, %.
    sent: by client, of those that count.
    downlink_bytes: payload of the model that every client gets.
    round_s: from the round's start until the new model is on disk and handed to the senders; nan,
        with nothing ``sent``, where the controller was killed before it had logged the round.
    refused: what was refused in it and of whom.
    """

    number: int
    accuracy: float
    sent: dict[int, Sent]
    downlink_bytes: int
    round_s: float = math.nan
    refused: tuple[str, ...] = ()


def sgd(
    model: nn.Module,
    data: Dataset,
    index: Tensor,
    *,
    epochs: int,
    lr: float,
    momentum: float,
    batch: int,
    generator: Generator,
) -> Iterator[None]:
    """Train ``model`` on the samples ``index`` of ``data``; yields after each step.

    What a client's ``script`` may replace.

    Raises
    ------
    Diverged
        The loss is not finite.
    """
    velocity: dict[nn.Parameter, Tensor] = {}
    stream = sampling.batches(index, batch, "random", generator, last="keep")
    for chosen in islice(stream, steps(len(index), batch, epochs)):
        model.zero_grad()
        scores = model(prepare(data, data.train_x[chosen]))
        loss = nn.functional.cross_entropy(scores, data.train_y[chosen])
        if not torch.isfinite(loss):
            raise Diverged(f"loss is {loss.item()}; lower lr")
        loss.backward()
        descend(model, velocity, lr, momentum)
        yield


@torch.no_grad()
def descend(
    model: nn.Module, velocity: dict[nn.Parameter, Tensor], lr: float, momentum: float
) -> None:
    """A step of SGD by the gradients of ``model``, the same to the bit as with torch's optimizer,
    whose first use imports torch's compiler, for seconds in every process.

    ``velocity`` is by parameter, empty before the first step.
    """
    for parameter in model.parameters():
        if (step := parameter.grad) is None:
            continue
        if momentum:
            if parameter in velocity:
                velocity[parameter].mul_(momentum).add_(step)
            else:
                velocity[parameter] = step.clone()
            step = velocity[parameter]
        parameter.add_(step, alpha=-lr)


def prepare(data: Dataset, samples: Tensor) -> Tensor:
    """Standardised images of ``data``, in the memory layout that processors handle fastest."""
    samples = data.prepare(samples)
    return channels_last(samples) if samples.dim() == 4 else samples


def steps(samples: int, batch: int, epochs: int) -> int:
    """Number of SGD steps in so many epochs, with each epoch's smaller last batch."""
    return epochs * math.ceil(samples / batch)


def command(settings: ControllerSettings, number: int, hello: int = 0) -> Command:
    """What round ``number`` asks of a client, given its latest hello."""
    task = settings.task
    from_zero = number == 1 and task.first_baseline == "zero" and settings.init_path is None
    seed = fan_out(task.seed, f"round {number}")
    subset = settings.subset or 0
    return Command(
        number,
        hello,
        subset,
        settings.epochs,
        settings.lr,
        seed,
        from_zero,
        end=False,
    )


def initial(settings: ControllerSettings) -> Tensor:
    """(n,) weights before round 1; raises as :func:`.checkpoint.load`."""
    if settings.init_path is not None:
        return checkpoint.load(settings.init_path, settings.task, other_task=True)[1]
    return parameters_to_vector(settings.task.make_model().parameters()).detach()


class Participant:
    """A client's part in every round; keeps what its codec remembers from round to round.

    A round that is asked for once more, of a controller that lost it, gives the same again. Who has
    no samples does not train and sends an update of no weight.
    """

    def __init__(self, task: Task, client: int, data: Dataset, script: Callable = sgd) -> None:
        torch.set_num_threads(task.torch_threads)
        self.task, self.client, self.data, self.script = task, client, data, script
        self._model, self._codec = task.make_model(), task.make_codec(client)
        self._round, self._before = 0, {}
        # The first step and the first encoding are slow and belong to no round.
        some, draw = torch.arange(min(task.batch, len(data.train_y))), Generator()
        how = dict(epochs=1, lr=1e-3, momentum=0.0, batch=task.batch, generator=draw)
        next(sgd(self._model, data, some, **how))
        self.task.make_codec(client).compress(torch.linspace(0, 1, task.values), "model")

    def updates(self, asked: Command, start: Tensor) -> Iterator[tuple[Update, Frame]]:
        """Train from the (n,) weights ``start``; the packets to send, each when it is due."""
        if asked.round <= self._round:
            again = asked.round == self._round
            self._codec.load_state_dict(self._before if again else {})
        self._round, self._before = asked.round, self._codec.state_dict()
        index = samples(self.task, self.data.train_y, self.client, asked)
        _put(self._model, start)
        self._model.train()
        base = torch.zeros_like(start) if asked.zero else start
        total = steps(len(index), self.task.batch, asked.epochs)
        due = [total * number // self.task.packets for number in range(1, self.task.packets)]
        packet, spent, since = 0, 0.0, time.perf_counter()

        def make(last: bool) -> tuple[Update, Frame]:
            nonlocal base, spent, packet
            now = parameters_to_vector(self._model.parameters()).detach()
            sent = now if self.task.sends == "weights" else now - base
            payload, base = self._codec.compress(sent, "model"), now
            spent += time.perf_counter() - since
            packet += 1
            whose = (self.client, asked.hello, asked.round, packet - 1)
            return Update(*whose, last, len(index), spent, time.monotonic()), Frame(payload)

        for done, _ in enumerate(self._train(asked, index), 1):
            if done in due:
                yield make(last=False)
                since = time.perf_counter()
        yield make(last=True)

    def _train(self, asked: Command, index: Tensor) -> Iterator[None]:
        if not len(index):
            return iter(())
        return self.script(
            self._model,
            self.data,
            index,
            epochs=asked.epochs,
            lr=asked.lr,
            momentum=self.task.momentum,
            batch=self.task.batch,
            generator=_generator(asked.seed, f"order {self.client}"),
        )


def samples(task: Task, labels: Tensor, client: int, asked: Command) -> Tensor:
    """Indices of the samples that ``client`` trains on in a round."""
    if task.split.name == ANEW:
        shares = sampling.split(len(labels), task.clients, _generator(asked.seed, "split"))
        own = shares[client]
    else:
        generator = _generator(task.seed, "split")
        given = task.split.parameters
        own = splits.split(task.split.name, labels, task.clients, generator, **given)[client]
        own = own[torch.randperm(len(own), generator=_generator(asked.seed, f"subset {client}"))]
    return own[: asked.subset or None]


def shares(task: Task, labels: Tensor) -> list[int]:
    """How many samples each client has, of a training set with these (n,) labels."""
    if task.split.name == ANEW:
        return [len(share) for share in sampling.split(len(labels), task.clients)]
    generator, given = _generator(task.seed, "split"), task.split.parameters
    dealt = splits.split(task.split.name, labels, task.clients, generator, **given)
    return [len(share) for share in dealt]


class Contribution:
    """What a client brings to a round, packet by packet: their sum.

    Parameters
    ----------
    client: whose codec is expected.
    samples: of the client's own share; it cannot have trained on more.
    largest: of the values, by magnitude, that are taken.

    Raises
    ------
    ValueError
        From :meth:`add`: a packet out of order, or one that does not fit the task.
    """

    def __init__(self, task: Task, client: int, samples: int, largest: float = math.inf) -> None:
        self._task, self._codec, self._samples = task, task.make_codec(client), samples
        self._named, self._largest = task.codec_of(client).name, largest
        self.values = torch.zeros(task.values)
        self.packets, self.complete = 0, False
        self.sent = Sent(0, 0, 0, 0, 0, 0.0, 0.0)

    def add(self, head: Update, frame: bytes | memoryview, asked: Command, arrived: float) -> None:
        """Add one packet, ``arrived`` at this time of the monotonic clock."""
        if self.complete or head.packet != self.packets or head.packet >= self._task.packets:
            raise ValueError(f"packet {head.packet} where {self.packets} is due")
        most = min(asked.subset or self._samples, self._samples)
        if head.samples > most:
            raise ValueError(f"{head.samples} samples, of at most {most}")
        if not (math.isfinite(head.train_s) and math.isfinite(head.published)):
            raise ValueError(f"times of {head.train_s} and {head.published} s")
        got = Frame.from_bytes(frame, limit=messages.longest(self._task.values, len(frame)))
        payload = got.payload
        if payload.codec != self._named or payload.shape != (self._task.values,):
            raise ValueError(
                f"{payload.codec} of shape {payload.shape}, needs {self._named} of "
                f"{self._task.values} values"
            )
        values = self.values + self._codec.decompress(payload)
        if not bool(torch.isfinite(values).all()):
            raise ValueError("the sum of its packets is not finite")
        if (most := float(values.abs().max())) > self._largest:
            raise ValueError(f"values up to {most:.3g}, at most {self._largest:g} are taken")
        self.values = values
        self.packets, self.complete = self.packets + 1, head.last
        before = self.sent
        message = messages.size(head, got)
        label = messages.label(head)
        self.sent = Sent(
            head.samples,
            before.payload_bytes + payload.nbytes,
            before.message_bytes + message,
            before.frame_bytes + segments.wire_bytes(message, label),
            before.link_bytes + link_bytes(message, label),
            head.train_s,
            before.communication_s + arrived - head.published,
        )


MEAN = aggregation.load("mean")


def aggregate(
    task: Task,
    start: Tensor,
    brought: dict[int, Contribution],
    zero: bool,
    rule: Aggregation = MEAN,
) -> Tensor:
    """The new (n,) weights: what ``rule`` makes of what clients bring, weighted by their samples.

    In the order of the clients, so that the result is the same whoever came first. Who has no
    samples changes nothing; if fewer have some than the rule takes, the weights stay as they are.
    """
    some = [brought[client] for client in sorted(brought) if brought[client].sent.samples]
    if len(some) < max(1, rule.least):
        return start
    total = sum(one.sent.samples for one in some)
    weights = [one.sent.samples / total for one in some]
    made = rule(torch.stack([one.values for one in some]), weights, start if _whole(task) else None)
    return made if _whole(task) or zero else start + made


def _whole(task: Task) -> bool:
    """Whether clients send weights, not changes."""
    return task.sends == "weights"


class Examiner:
    """Evaluates weights on the test set."""

    def __init__(self, task: Task, data: Dataset) -> None:
        self._model, self._data = task.make_model().eval(), data

    def accuracy(self, weights: Tensor) -> float:
        """Test accuracy (%) of the (n,) ``weights``."""
        return self.examine(weights)[0]

    @torch.no_grad()
    def examine(self, weights: Tensor) -> tuple[float, float]:
        """Test accuracy (%) and mean loss (cross entropy) of the (n,) ``weights``."""
        _put(self._model, weights)
        batches = zip(
            self._data.test_x.split(TEST_BATCH), self._data.test_y.split(TEST_BATCH), strict=True
        )
        right, loss = 0, 0.0
        for images, labels in batches:
            scores = self._model(prepare(self._data, images))
            right += int((scores.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
        return 100 * right / len(self._data.test_y), loss / len(self._data.test_y)

    @property
    def clueless(self) -> float:
        """The loss of who takes all classes for equally likely."""
        return math.log(max(2, self._data.n_classes))


def simulate(
    settings: ControllerSettings,
    data: Dataset | None = None,
    scripts: dict[int, Callable] | None = None,
) -> tuple[list[Round], Tensor]:
    """The training in this process, every client in every round; no clock and no network, and
    nothing of what clients bring is refused.

    Sets torch's number of threads, as each client does.

    Parameters
    ----------
    scripts: of clients that do not train with :func:`sgd`.

    Returns
    -------
    its rounds, and the final (n,) weights: those of the live training to the bit, if nobody was
    late or lost there.
    """
    task, data = settings.task, data or settings.task.data.load()
    clients = range(task.clients)
    scripts, rule = scripts or {}, settings.rule()
    participants = [Participant(task, n, data, scripts.get(n, sgd)) for n in clients]
    examiner, weights = Examiner(task, data), initial(settings)
    rounds, owned = [], shares(task, data.train_y)
    for number in range(1, settings.rounds + 1):
        asked = command(settings, number)
        brought = {client: Contribution(task, client, own) for client, own in enumerate(owned)}
        for client in clients:
            for head, frame in participants[client].updates(asked, weights):
                # Both times are 0, because no clock runs here.
                brought[client].add(head, frame.to_bytes(), asked, head.published)
        weights = aggregate(task, weights, brought, asked.zero, rule)
        sent = {client: brought[client].sent for client in clients}
        rounds.append(Round(number, examiner.accuracy(weights), sent, 4 * task.values))
    return rounds, weights


def link_bytes(message: int, label: str) -> int:
    """Bytes of a message on the loopback's link, counted, with one datagram a fragment.

    A segment is one DDS sample; on the loopback it travels in fragments of at most 64,000 bytes.
    Each datagram has heads of RTPS (20), time stamp (12), DATA (24) or DATA_FRAG (36), UDP (8), IP
    (20) and Ethernet (14). Acknowledgements, heartbeats and repetitions come on top.
    """
    total, heads = 0, 20 + 12 + 8 + 20 + 14
    for start in range(0, message or 1, segments.CUT):
        sample = segments.wire_bytes(min(segments.CUT, message - start), label)
        pieces = math.ceil(sample / FRAGMENT)
        total += sample + pieces * (heads + (24 if pieces == 1 else 36))
    return total


def _put(model: nn.Module, weights: Tensor) -> None:
    """Copy the (n,) ``weights`` into ``model``."""
    parameters = list(model.parameters())
    parts = weights.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data.copy_(part.view_as(parameter))


def _generator(seed: int, name: str) -> Generator:
    return torch.Generator().manual_seed(fan_out(seed, name))
