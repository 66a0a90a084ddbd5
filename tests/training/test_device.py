"""Device profiles: stated ones are checked, this machine's is measured."""

import pytest

from methods import compression
from testbed.training import device, models


def test_stated_profiles_are_whole():
    for name, profile in device.profiles().items():
        assert profile.title and profile.source, name
        for codec in compression.names():
            assert profile.compression_s(codec, 1e6) >= 0


def test_costs_are_arithmetic():
    profile = device.Device(
        title="t", source="s", flops=2e9, round_overhead_s=0.5, compression={"dgc": 4e6}
    )
    assert profile.compute_s(1e8, 10) == pytest.approx(0.5 + 0.5)
    assert profile.compression_s("dgc", 1e6) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="device 't' has no compression rate for 'fp16'"):
        profile.compression_s("fp16", 1)


def test_fixed_costs_and_known_speeds():
    profile = device.Device(
        title="t",
        source="s",
        flops=1e9,
        samples_per_s={"lstm": 50},
        round_overhead_s=0.5,
        compression={"dgc": {"rate": 4e6, "fixed_s": 0.5, "decode": 0.2}},
    )
    assert profile.compute_s(1e8, 10, "lstm") == pytest.approx(0.5 + 0.2)
    assert profile.compute_s(1e8, 10, "vgg16") == pytest.approx(0.5 + 1.0)
    assert profile.compression_s("dgc", 1e6, tensors=3) == pytest.approx(3 * 0.5 + 0.25)
    assert profile.encode_s("dgc", 1e6) == pytest.approx(0.8 * 0.75)
    assert profile.decode_s("dgc", 1e6) == pytest.approx(0.2 * 0.75)


# Table 1 of Sketch-Fusion, ms.
TABLE_1 = {"top_k": 122, "dgc": 242, "random_k": 187}
TABLE_1 |= {"qsgd": 46, "sign_sgd": 13, "terngrad": 70, "power_sgd": 174}
RESNET50_TENSORS, RESNET50_VALUES = 161, 25_557_032


@pytest.mark.parametrize("name", ["v100_document", "v100_flops"])
def test_the_documents_gpu_is_what_its_tables_imply(name):
    profile = device.profile(name)
    for codec, printed in TABLE_1.items():
        ours = profile.compression_s(codec, 4 * RESNET50_VALUES, RESNET50_TENSORS)
        assert ours == pytest.approx(printed / 1e3, rel=1e-3)
        # Section 3: from 2^4 to 2^20 values a call less than doubles; here it just does.
        small, large = (profile.compression_s(codec, 4 * 2**power) for power in (4, 20))
        assert large / small == pytest.approx(2, rel=1e-3)
    # Table 4 over 16 GPUs, and the same GPU by operations.
    for model, printed in {"resnet50": 6321, "resnet20": 8430, "lstm": 9864}.items():
        flops = models.flops_per_sample(models.make(model), models.sample_shape(model))
        rate = 16 / profile.compute_s(flops, 1, model)
        if name == "v100_document" or model == "resnet50":
            assert rate == pytest.approx(printed, rel=1e-3)
        else:
            assert rate > 4 * printed  # by operations they would be several times as fast


def test_recorded_profiles_are_found_beside_the_others(tmp_path):
    entry = "{title: t, source: s, flops: 1, round_overhead_s: 0, compression: {other: 1.0}}"
    (tmp_path / "devices.yaml").write_text(f"stated: {entry}")
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "h200.yaml").write_text(f"h200: {entry}")
    assert set(device.profiles(tmp_path / "devices.yaml")) == {"stated", "h200"}


def test_this_machine_is_measured():
    profile = device.measure(values=20_000, repeats=1)
    assert set(compression.names()) < set(profile.compression)
    for name, cost in profile.compression.items():
        assert cost.rate > 0 and cost.fixed_s >= 0 and 0 < cost.decode < 1
        # What is not compressed is sent from where it lies.
        assert (profile.compression_s(name, 1e6) > 0) == (name != "identity")
    assert profile.flops > 1e6


def test_only_the_codecs_asked_for_are_timed_with_their_parameters(monkeypatch):
    timed = []

    def note(make, values, repeats):
        timed.append(make())
        return device.Coding(rate=1e9)

    monkeypatch.setattr(device, "measure_coding", note)
    profile = device.measure({"dgc": {"ratio": 0.5}}, repeats=1)
    assert [codec.ratio for codec in timed] == [0.5]
    assert set(profile.compression) == {"dgc", "identity", "other"}


def test_unknown_and_broken_profiles_are_named(tmp_path):
    with pytest.raises(ValueError, match="no device 'k80'; there are: this_cpu, geomx_k40m"):
        device.profile("k80")
    file = tmp_path / "devices.yaml"
    file.write_text("slow: {title: t, source: s, flops: -1, round_overhead_s: 0, compression: {}}")
    with pytest.raises(ValueError, match=r"(?s)devices\.yaml: profile 'slow'.*flops"):
        device.profiles(file)
