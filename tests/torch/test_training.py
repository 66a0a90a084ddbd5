"""The methods in torch's own training, by two and three processes over gloo."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import slowlink.torch
from slowlink.methods import compression
from slowlink.testbed.live.processes import LOOPBACK, run_ranks
from slowlink.torch import data_parallel

sys.path.insert(0, str(Path(__file__).parent))
import hook_peers  # noqa: E402

pytestmark = pytest.mark.slow

CODECS = {name: {} for name in compression.names()}
SMALL = {
    "bisparse": {"ratio": 0.05, "lower_bound": 100},
    "dgc": {"ratio": 0.05, "lower_bound": 100},
    "count_sketch": {"ratio": 0.05, "lower_bound": 100},
    "power_sgd": {"rank": 2},
    "two_bit": {"threshold": 0.01},
    "top_k": {"ratio": 0.05},
}
CODECS |= {name: parameters for name, parameters in SMALL.items() if name in CODECS}
STATEFUL = [name for name in ("top_k", "power_sgd", "bisparse", "dgc") if name in CODECS]
SHAPES = {name: p.shape for name, p in hook_peers.network().named_parameters()}
VALUES = sum(shape.numel() for shape in SHAPES.values())


def together(size, jobs):
    """What each rank answers to each job, by the jobs' names."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answers = run_ranks(
        hook_peers.several,
        size,
        store.port,
        size,
        list(jobs.values()),
        timeout_s=300,
        environment=lambda rank: LOOPBACK,
    )
    return dict(zip(jobs, zip(*answers, strict=True), strict=True))


def training(method, **options):
    return "train", dict(method=method, parameters=CODECS.get(method, {}), **options)


OVERFLOW = dict(scaled=True, options={"non_finite": "pass"})
TWO = {f"{name} codec": training(name) for name in CODECS}
TWO |= {f"{name} resumed": training(name, resume_at=3) for name in STATEFUL}
TWO |= {
    f"{name} {kind}": training(name, **OVERFLOW, **more)
    for name in STATEFUL
    for kind, more in {
        "with overflow": dict(steps=(0, 1, 2, 3, 4), overflow_at=2),
        "without": dict(steps=(0, 1, 3, 4)),
    }.items()
}
TWO |= {
    "plain": training("plain"),
    "torch fp16": training("torch fp16"),
    "torch power_sgd": training("torch power_sgd", bucket_mb=100),
    "one bucket": training("power_sgd", bucket_mb=100, options={"start_after": 2}),
    "refused": training("top_k", overflow_at=2, everywhere=True),
    "plain refused": training("identity", overflow_at=2, everywhere=True),
    "elementwise refused": training("fp16", overflow_at=2, everywhere=True),
    "double plain": training("plain", dtype=torch.float64),
    "double identity": training("identity", dtype=torch.float64),
    "unlike": ("unlike", {}),
    "patience": ("patience", {}),
    "foreign states": ("foreign_states", {}),
    "sparse": ("sparse", {}),
    "frozen late": ("frozen_late", {}),
    "identity passed": training(
        "identity", options={"non_finite": "pass"}, steps=(0,), overflow_at=0
    ),
    "bfloat16": training("top_k", dtype=torch.bfloat16),
    "half of identity": training("identity", dtype=torch.bfloat16),
    "warm-up": training("top_k", options={"start_after": 3}, steps=(0, 1, 2)),
    "after warm-up": training("top_k", options={"start_after": 3}),
    **{
        f"fused {name}": training("top_k", options={"fusion": name})
        for name in ("whole_model", "layer_wise", "optimal")
    },
    **{f"{name} views": training(name, views=True) for name in ("fp16", "top_k")},
    "resumed by one": ("resumed_by_one", {}),
    "scaled": ("scaled_local_steps", {}),
    "local states": ("foreign_local_states", {}),
    "sharded": ("sharded", {}),
    "sharded identity": ("sharded", dict(method="identity")),
    "sharded lossless": ("sharded", dict(method="top_k", parameters={"ratio": 1.0})),
    "sharded top_k": ("sharded", dict(method="top_k", parameters={"ratio": 0.1})),
    "sharded resumed": (
        "sharded",
        dict(method="top_k", parameters={"ratio": 0.1}, resume_at=3),
    ),
    "sharded power_sgd": ("sharded", dict(method="power_sgd")),
}
THREE = {f"{name} codec 3": training(name) for name in CODECS}
THREE |= {
    "plain 3": training("plain"),
    "halves": ("halves", dict(shapes=[(7,), (3, 4), (1,)])),
    "of a part": ("of_a_part", dict(method="random_k")),
    "averaged": ("averaged", dict(every=4)),
    "bsp": ("local", dict(policy="bsp", options=dict(every=4))),
    "bsp coded": ("local", dict(policy="bsp", options=dict(every=4, codec="top_k"))),
    "bsp resumed": (
        "local",
        dict(policy="bsp", options=dict(every=4, codec="top_k"), resume_at=7),
    ),
    "fedavg": ("local", dict(policy="fedavg", options=dict(every=3))),
}
PARTED = {
    "asp": dict(every=4),
    "ssp": dict(every=2),
    "lpsp": dict(),
    "gssp": dict(),
    "mll_sgd": dict(every=2, hub_rounds=2, group_size=2),
    "mixed": dict(every=2, groups=[0, 0, 1]),
}
PARTED = {name: kw for name, kw in PARTED.items() if name in slowlink.synchronization.names()}
THREE |= {f"{name} parted": ("local", dict(policy=name, options=kw)) for name, kw in PARTED.items()}
THREE |= {
    "parted coded": ("local", dict(policy="asp", options=dict(every=4, codec="top_k"))),
    "parted rounds": ("local", dict(policy="asp", options=dict(codec="power_sgd"))),
    "parted saved": ("local", dict(policy="asp", resume_at=4)),
    "computes on": ("local", dict(policy="lpsp", options=dict(computes_on=True))),
    "no such parameter": ("local", dict(policy="lpsp", options=dict(every=3))),
}


@pytest.fixture(scope="module")
def ran():
    return together(2, TWO) | together(3, THREE)


def vectors(answers):
    return [answer["vector"] if isinstance(answer, dict) else answer for answer in answers]


def alike(answers):
    """The parameters, which are bit-equal on all ranks."""
    first, *others = vectors(answers)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)
    return first


@pytest.mark.parametrize("name", CODECS)
def test_replicas_are_bit_equal_whatever_the_codec(ran, name):
    alike(ran[f"{name} codec"])
    alike(ran[f"{name} codec 3"])


@pytest.mark.parametrize("name", CODECS)
def test_two_ranks_get_what_one_process_computes(ran, name):
    """Every parameter is coded under its name, so buckets do not matter; a sum of two numbers is
    the same in either order."""
    wanted = hook_peers.in_one_process(name, CODECS[name], 2)
    assert torch.equal(alike(ran[f"{name} codec"]), wanted)


@pytest.mark.parametrize("name", CODECS)
def test_reports_count_bytes_of_the_published_formula(ran, name):
    (codec,) = hook_peers.of_all(name, CODECS[name], 3)[:1]
    most = sum(sum(codec.payload_bytes(shape)) for shape in SHAPES.values())
    for answer in ran[f"{name} codec 3"]:
        report = answer["report"]
        assert report["messages"] > 1 and report["dense_bytes"] == 4 * VALUES
        assert 0 < report["payload_bytes"] <= most
        assert report["payload_bytes"] == most or not codec.exact_bytes
        if name != "fp16":  # each rank's own part of a sum of halves does not travel
            assert report["frame_bytes"] >= report["payload_bytes"]
        assert report["hidden_ms"] >= 0 and report["busy_ms"] > 0
        assert f"{most:,.0f} B" in answer["printed"] or not codec.exact_bytes
        json.dumps(report)


def test_identity_is_ddp_itself(ran):
    assert torch.equal(alike(ran["identity codec"]), alike(ran["plain"]))
    assert torch.equal(alike(ran["identity codec 3"]), alike(ran["plain 3"]))


def test_fp16_and_power_sgd_do_as_torchs_own_hooks(ran):
    plain = alike(ran["plain"])

    def away(name):
        return float((alike(ran[name]) - plain).norm() / (plain - initial()).norm())

    assert away("fp16 codec") < 2 * away("torch fp16") < 0.01
    # Both send the first two steps whole.
    assert 0.5 < away("one bucket") / away("torch power_sgd") < 1.5


def initial():
    return hook_peers.vector(hook_peers.network())


def test_halves_of_three_are_added_wide_and_rounded_once(ran):
    for bodies, wanted in ran["halves"]:
        assert bodies == wanted


@pytest.mark.parametrize("name", STATEFUL)
def test_what_was_saved_goes_on_to_the_bit(ran, name):
    assert torch.equal(alike(ran[f"{name} resumed"]), alike(ran[f"{name} codec"]))


@pytest.mark.parametrize("name", STATEFUL)
def test_a_step_that_overflows_is_skipped_everywhere_and_leaves_no_trace(ran, name):
    """Rank 1 alone overflows; AMP's scaler halves its factor, which memory must not notice."""
    overflowed, without = ran[f"{name} with overflow"], ran[f"{name} without"]
    assert [answer["skipped"] for answer in overflowed] == [[2], [2]]
    assert torch.equal(alike(overflowed), alike(without))
    for a, b in zip(overflowed, without, strict=True):
        assert_same(a["state"]["codec"], b["state"]["codec"])


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        for name, value in a[key].items():
            same = torch.equal(value, b[key][name]) if torch.is_tensor(value) else None
            assert same if same is not None else value == b[key][name]


def test_what_is_not_finite_is_refused_by_name_with_the_remedy(ran):
    for name in ("refused", "plain refused", "elementwise refused"):
        for text in ran[name]:
            assert re.search(r"gradient of '\d\.(weight|bias)': \d+ of \d+ values are NaN", text)
            assert "non_finite='pass'" in text


def test_where_only_the_share_is_not_finite_the_error_stays_as_it_is():
    share = ValueError("NaN or infinite: the share")
    with (
        pytest.raises(ValueError, match="^NaN or infinite: the share") as told,
        data_parallel._refusing(["weight"], [torch.ones(3)]),
    ):
        raise share
    assert told.value is share and "non_finite='pass'" in share.__notes__[0]


def test_doubles_are_summed_as_they_are(ran):
    assert torch.equal(alike(ran["double identity"]), alike(ran["double plain"]))


def test_ranks_with_other_parameters_are_told_so(ran):
    for text in ran["unlike"]:
        assert text == "rank 1 has another model, codec or parameter than rank 0; all need the same"


def test_what_follows_waits_as_long_as_the_group_given(ran):
    assert ran["patience"] == (60.0, 60.0)


def test_a_state_of_something_else_is_refused(ran):
    model, codec, nothing = ran["foreign states"][0]
    assert model == "load_state_dict: the state is of another model, as '0.bias'"
    assert re.search("the state is of top_k with ratio=0.5, the hook has 0.01", codec)
    assert nothing == "load_state_dict: the state is of no codec, the hook has top_k"


def test_ranks_that_go_on_from_different_steps_are_told_so(ran):
    told = "rank 1 has gone on from another step than rank 0"
    assert all(told in text for text in ran["resumed by one"])


def test_local_steps_refuse_the_state_of_another_codec(ran):
    assert "the state is of identity, the hook has top_k" in ran["local states"][0]


def test_a_scaler_takes_its_factor_from_a_fused_optimizer_inside_too(ran):
    for plain, fused in ran["scaled"]:
        assert plain.isfinite().all() and torch.allclose(plain, fused, rtol=1e-5)


@pytest.mark.parametrize("name", ["qsgd", "terngrad"])
def test_ranks_round_by_draws_of_their_own(name):
    """Equal gradients: each rank's error is its own, so that the mean's shrinks by √ranks; with one
    draw for all it would be that of one rank."""
    error = together(4, {"mean": ("error_of_the_mean", dict(method=name))})["mean"][0]
    alone = together(1, {"mean": ("error_of_the_mean", dict(method=name))})["mean"][0]
    assert error == pytest.approx(alone / 2, rel=0.2)


def test_a_group_of_torchs_default_backends_trains_on_a_processor():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = run_ranks(
        hook_peers.of_default_backends, 2, store.port, 2, timeout_s=120,
        environment=lambda rank: LOOPBACK,
    )  # fmt: skip
    hooked, stepped = zip(*ranks, strict=True)
    assert torch.equal(*hooked) and torch.equal(*stepped)


def test_sparse_gradients_are_refused_by_name(ran):
    assert all("gradient of 'weight': is sparse" in text for text in ran["sparse"])


def test_parameters_frozen_after_wrapping_are_refused(ran):
    assert all("took no gradients when the hook was made" in text for text in ran["frozen late"])


def test_what_fails_beside_backward_keeps_its_kind_and_words():
    done = torch.futures.Future()
    data_parallel._Bucket(torch.zeros(1), 1, done).failed(ConnectionError("rank 1 is gone"))
    with pytest.raises(RuntimeError, match="ConnectionError: rank 1 is gone"):
        done.then(data_parallel._opened).wait()


def test_identity_passes_on_what_is_not_finite_as_ddp_does(ran):
    assert [answer["skipped"] for answer in ran["identity passed"]] == [[0], [0]]


def test_gradients_come_back_in_their_dtype(ran):
    for name in ("bfloat16", "half of identity"):
        for answer in ran[name]:
            assert answer["dtypes"] == {torch.bfloat16}
            assert answer["vector"].dtype == torch.bfloat16
        alike(ran[name])


@pytest.mark.parametrize("name", ["fp16", "top_k"])
def test_gradients_may_be_views_of_buckets(ran, name):
    assert torch.equal(alike(ran[f"{name} views"]), alike(ran[f"{name} codec"]))


def test_a_part_of_the_ranks_may_train_alone(ran):
    first, second, third = ran["of a part"]
    assert third is None
    wanted = hook_peers.in_one_process("random_k", {}, 2)
    assert torch.equal(first, second) and torch.equal(first, wanted)


def test_first_steps_are_plain_if_so_wished(ran):
    plain = hook_peers.in_one_process("identity", {}, 2, range(3))
    assert torch.equal(alike(ran["warm-up"]), plain)
    assert not torch.equal(alike(ran["after warm-up"]), alike(ran["plain"]))


@pytest.mark.parametrize("name", ["whole_model", "layer_wise", "optimal"])
def test_fusion_changes_messages_and_nothing_else(ran, name):
    assert torch.equal(alike(ran[f"fused {name}"]), alike(ran["top_k codec"]))
    groups = ran[f"fused {name}"][0]["state"]["groups"]
    assert sorted(n for group in groups for n in group) == sorted(SHAPES)
    assert groups == ran[f"fused {name}"][1]["state"]["groups"]
    assert len(groups) == {"whole_model": 1, "layer_wise": len(SHAPES)}.get(name, len(groups))


def test_sharded_training_without_loss_is_torchs_own(ran):
    own = alike(ran["sharded"])
    for name in ("sharded identity", "sharded lossless"):
        torch.testing.assert_close(alike(ran[name]), own, rtol=1e-5, atol=1e-6)


def test_sharded_training_sends_what_the_codec_makes_of_parts(ran):
    alike(ran["sharded top_k"])
    for answer in ran["sharded top_k"]:
        sent, dense = answer["bytes"]
        assert 0.15 < sent / dense < 0.3  # a value and an index of one in ten, and of short parts
    assert torch.equal(alike(ran["sharded resumed"]), alike(ran["sharded top_k"]))


def test_sharded_training_refuses_codecs_of_several_rounds(ran):
    assert "fsdp_hook: power_sgd goes on with the sum" in ran["sharded power_sgd"][0]


def test_local_steps_that_all_join_are_torchs_averaging_of_models(ran):
    assert torch.equal(alike(ran["bsp"]), alike(ran["averaged"]))
    assert [answer["meetings"] for answer in ran["bsp"]] == [3, 3, 3]
    # FedAvg with all clients, every 3 steps, is the same schedule by another policy.
    assert [answer["meetings"] for answer in ran["fedavg"]] == [4, 4, 4]


def test_local_steps_with_a_codec_send_less_and_resume_to_the_bit(ran):
    assert torch.equal(alike(ran["bsp resumed"]), alike(ran["bsp coded"]))
    k = sum(-(-shape.numel() // 100) for shape in SHAPES.values())
    assert ran["bsp coded"][0]["bytes"] == 3 * 8 * k


@pytest.mark.parametrize("name", PARTED)
def test_where_some_meet_all_end_with_one_model(ran, name):
    answers = ran[f"{name} parted"]
    assert not torch.equal(alike(answers), initial())
    assert all(answer["meetings"] >= 1 for answer in answers)
    # Nobody's messages were lost: a meeting brings a model's worth of values, or nothing.
    assert all(answer["bytes"] % (4 * VALUES) == 0 for answer in answers)


@pytest.mark.skipif("asp" not in PARTED, reason="asp is not there")
def test_the_first_rank_stays_until_all_have_the_last_model():
    """Nothing follows in these processes, so the first one ends as soon as it may."""
    alike(together(3, {"asp": ("local", dict(policy="asp", steps=3))})["asp"])


def test_parts_may_send_coded_changes(ran):
    alike(ran["parted coded"])
    assert all(a["bytes"] == 3 * 8 * -(-VALUES // 100) for a in ran["parted coded"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("parted rounds", "power_sgd has several rounds.*take a codec of one round"),
        ("parted saved", "there is no state of one moment.*call finish"),
        ("computes on", "compute on while they meet.*choose ones that wait"),
        ("no such parameter", "lpsp: unknown parameter 'local_iterations'"),
    ],
)
def test_what_local_steps_cannot_do_is_said(ran, name, message):
    for text in ran[name]:
        assert isinstance(text, str) and re.search(message, text, re.DOTALL), text


def test_what_the_hook_cannot_take_is_said():
    with pytest.raises(ValueError, match="needs a DistributedDataParallel model, not Sequential"):
        slowlink.torch.comm_hook(hook_peers.network(), "top_k")
    with pytest.raises(ValueError, match="can be given a reduce-scatter; call torch's fully_shard"):
        slowlink.torch.fsdp_hook(hook_peers.network(), "top_k")
    with pytest.raises(ValueError, match="did you mean 'power_sgd'"):
        slowlink.torch.fsdp_hook(hook_peers.network(), "powersgd")
