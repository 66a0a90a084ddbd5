"""Configuration files: what is refused, why, and what a mutation may leave standing."""

import copy
import json
import math
import random
import re
from pathlib import Path

import pytest

from slowlink.testbed.live.dds.federated.__main__ import main
from slowlink.testbed.live.dds.federated.settings import (
    ClientSettings,
    ControllerSettings,
    Data,
    Task,
    parse,
    read,
)

TASK = dict(
    model={"name": "lenet5", "hidden": [20, 10]},
    data={"name": "mnist", "directory": None, "limit": 100, "test_limit": 50},
    clients=3,
    split={"name": "dirichlet", "alpha": 0.5},
    seed=1,
    batch=16,
    momentum=0.5,
    codec={"name": "sparse_int8", "ratio": 0.1, "error_feedback": True},
    codecs={"1": {"name": "identity"}},
    sends="delta",
    first_baseline="zero",
    packets=2,
    torch_threads=1,
)
CONNECTION = dict(
    task=TASK, domain=7, run="a", keys=None, interface="lo", peers=[], lease_s=5.0, wait_s=9
)
CONTROLLER = CONNECTION | dict(
    rounds=3,
    subset=50,
    epochs=1,
    lr=0.1,
    min_clients=2,
    timeout_s=10.0,
    late="drop",
    state="state",
    init_path=None,
    log="log",
    aggregation={"name": "trimmed_mean"},
    largest=1e3,
    worst=None,
    quarantine=2,
    late_s=60.0,
    kept=1,
)
CLIENT = CONNECTION | dict(
    client=2,
    script="slowlink.testbed.live.dds.federated.training:sgd",
    model_path="model",
    init_path=None,
)
FILES = {ControllerSettings: CONTROLLER, ClientSettings: CLIENT}


@pytest.mark.parametrize("kind", FILES)
def test_what_is_written_is_what_is_meant(kind):
    settings = parse(json.dumps(FILES[kind]), kind)
    assert json.loads(settings.model_dump_json()) == FILES[kind]


@pytest.mark.parametrize("kind", FILES)
def test_every_field_is_described(kind):
    described = "".join(c.__doc__ for c in kind.__mro__ if c.__module__ == kind.__module__)
    assert [name for name in kind.model_fields if name not in described] == []

    for part in (Task, Data):
        assert [name for name in part.model_fields if name not in part.__doc__] == []


WRONG = [
    ("rounds", 0, "c.json: rounds: Input should be greater than or equal to 1, not 0"),
    ("rounds", "3", "c.json: rounds: Input should be a valid integer, not '3'"),
    ("rounds", True, "c.json: rounds: Input should be a valid integer"),
    ("lr", None, "c.json: lr: Input should be a valid number"),
    ("late", "wait", "c.json: late: Input should be 'drop' or 'next', not 'wait'"),
    ("domain", 233, "c.json: domain: Input should be less than or equal to 232"),
    ("run", "", "c.json: run: String should have at least 1 character"),
    ("min_clients", 4, "c.json: min_clients: 4 of 3 clients"),
    ("task.batch", -1, "c.json: task.batch: Input should be greater than 0, not -1"),
    ("task.bach", 1, "c.json: task.bach: no such key; there are: model, data, clients, split"),
    ("task.data.folder", "x", "task.data.folder: no such key; there are: name, directory, limit"),
    ("round", 1, "c.json: round: no such key; there are: task, domain, run"),
    ("task.model.name", "lenet", "task.model: no model 'lenet'; there are: "),
    ("task.model.hidden", [1], "task.model: lenet5: IndexError"),
    ("task.model.hiden", 1, "task.model: lenet5: TypeError: .*unexpected keyword argument 'hiden'"),
    ("task.model", {"name": "resnet8"}, "resnet8 keeps running statistics"),
    ("task.model.hidden", [10**6, 10**6], "lenet5 has 1000412002582 values"),
    ("task.data.name", "cifar", "task.data.name: no data set 'cifar'; there are: mnist"),
    ("task.codec.name", "sparse", "task.codec: no compression method 'sparse'"),
    ("task.codec.ratio", 1.5, "sparse_int8: ratio must be a number in"),
    ("task.codec", {"name": "power_sgd"}, "power_sgd needs several exchanges"),
    ("task.codec", {"name": "sign_sgd"}, "sign_sgd gives a vote, not a sum"),
    ("task.split.alpha", 0.0, "task.split: dirichlet: alpha must be a finite number above 0"),
    ("task.codecs", {"3": {"name": "fp16"}}, "c.json: task: codecs: 3, the last client is 2"),
    (
        "task.codecs",
        {"0": {"name": "signsgd"}},
        "c.json: task.codecs: no compression method 'signsgd'",
    ),
    ("task.split.beta", 1, "task.split: dirichlet: unknown parameter 'beta'; it takes: alpha"),
    ("task.split", {"name": "anew", "alpha": 1}, "task.split: anew takes no parameters, not alpha"),
    ("task.model.hidden", [0, 1], "none may be empty"),
    ("state", "", "c.json: state: must name a file or folder"),
    ("task.data.directory", 5, "c.json: task.data.directory: Input is not a valid path"),
    ("task.sends", "weights", "task: packets: packets of a round are added up"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_what_cannot_be_is_refused(key, value, message):
    with pytest.raises(ValueError, match="(?s)" + message.replace("(", re.escape("("))):
        parse(json.dumps(_with(CONTROLLER, key.split("."), value)), ControllerSettings, "c.json")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("client", 3, "client: 3, the last is 2"),
        ("script", "os", "script 'os': must be module:function"),
        ("script", "os:nothing", "script 'os:nothing': must be module:function"),
        ("script", "os:sep", "script 'os:sep': sep is not a function"),
        ("script", ":", "script ':': must be module:function"),
    ],
)
def test_what_a_client_cannot_be(key, value, message):
    with pytest.raises(ValueError, match=message):
        parse(json.dumps(CLIENT | {key: value}), ClientSettings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "c.json: not JSON"),
        ("[]", "c.json: Input should be an object"),
        ('{"rounds": 1, "rounds": 2}', "c.json: not JSON: key 'rounds' is given twice"),
        ('{"rounds": NaN}', "c.json: not JSON: NaN is not a finite number"),
        ("[" * 100_000, "c.json: not JSON"),
        (b"\xff\xfe", "c.json: not JSON"),
    ],
)
def test_what_is_no_configuration(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, ControllerSettings, "c.json")


def test_all_that_is_wrong_is_told_at_once():
    wrong = CONTROLLER | {"lr": 0, "rounds": 0}
    with pytest.raises(ValueError) as refused:
        parse(json.dumps(wrong), ControllerSettings, "c.json")
    assert [line.split(":")[1].strip() for line in str(refused.value).splitlines()] == [
        "rounds",
        "lr",
    ]


def _paths(value, at=()):
    """Of all values, containers too."""
    found = [at] if at else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _paths(inner, (*at, key))
    return found


def _with(config, path, value):
    config = copy.deepcopy(config)
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return config


SOME = [
    *(None, True, False, 0, 1, 2, 3, -1, 0.5, -0.5, 1.5, 10**9, 2**32, 2**64, 1e308, "", "1", "lo"),
    *("anew", "even", "mnist", "identity", "lenet5", "weights", "zero", [], [1], {}, {"name": "a"}),
]


def _mutated(config, draw):
    """JSON text with one to three mutations of values, keys or bytes."""
    config = copy.deepcopy(config)
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(_paths(config))
        parent = config
        for key in path[:-1]:
            parent = parent[key]
        match draw.randrange(4):
            case 0 | 1:
                parent[path[-1]] = copy.deepcopy(draw.choice(SOME))
            case 2:
                del parent[path[-1]]
            case 3:
                parent[path[-1] + draw.choice("sx_")] = parent.pop(path[-1])
        if not _paths(config):
            break
    text = json.dumps(config)
    if draw.random() < 0.4:
        data = bytearray(text.encode())
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.choice(b'0123456789-.,:{}[]" aetrulfns\xff')
        return bytes(data)
    return text.encode()


def _says(config, settings):
    """Whether ``settings`` hold exactly what ``config`` gives, and defaults for the rest."""
    if isinstance(config, str) and config != settings:  # a path with a slash too many
        return isinstance(settings, str) and str(Path(config)) == settings
    if not isinstance(config, dict):
        return config == settings and isinstance(config, bool) == isinstance(settings, bool)
    return all(key in settings and _says(value, settings[key]) for key, value in config.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_mutated_configurations(kind):
    """5,000 of each kind: refused with a reason, or exactly what the text says."""
    draw = random.Random(20)
    accepted = 0
    for _ in range(5000):
        text = _mutated(FILES[kind], draw)
        try:
            settings = parse(text, kind, "c.json")
        except ValueError as error:
            for line in str(error).splitlines():
                assert len(line) > len("c.json: ") + 5
            assert str(error).startswith("c.json: ")
            continue
        accepted += 1
        dumped = settings.model_dump_json()
        assert _says(json.loads(text), json.loads(dumped))
        again = parse(dumped, kind)
        assert again == settings
        assert again.task.fingerprint == settings.task.fingerprint
        task = settings.task
        assert 1 <= task.clients <= 1024 and task.batch >= 1 and 0 <= task.momentum < 1
        assert 0 < task.values < 2**31 and task.make_codec(0).one_shot
        assert 0 <= settings.domain <= 232 and 0 < settings.lease_s < math.inf
        if kind is ControllerSettings:
            assert 1 <= settings.min_clients <= task.clients
            assert 1 <= settings.rounds < 2**32 and 0 < settings.lr < math.inf
        else:
            assert 0 <= settings.client < task.clients
    assert 100 < accepted < 2500


def test_fingerprint_is_of_what_matters():
    task = parse(json.dumps(CONTROLLER), ControllerSettings).task
    moved = _with(CONTROLLER, ("task", "data", "directory"), "/elsewhere")
    assert parse(json.dumps(moved), ControllerSettings).task.fingerprint == task.fingerprint
    other = _with(CONTROLLER, ("task", "seed"), 2)
    assert parse(json.dumps(other), ControllerSettings).task.fingerprint != task.fingerprint


def test_command_refuses_bad_files(tmp_path, capsys):
    bad = tmp_path / "c.json"
    bad.write_text(json.dumps(CONTROLLER | {"rounds": 0}))
    assert main(["controller", str(bad)]) == 2
    assert f"{bad}: rounds: Input should be" in capsys.readouterr().err
    assert main(["client", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    with pytest.raises(OSError, match="none.json"):
        read(tmp_path / "none.json", ClientSettings)
