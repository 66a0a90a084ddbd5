"""Device profiles: stated ones are checked, this machine's is measured."""

import math

import pytest

from methods import compression
from testbed.training import device


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


def test_this_machine_is_measured():
    profile = device.measure(values=20_000, repeats=1)
    assert set(compression.names()) < set(profile.compression)
    assert all(0 < rate < math.inf for rate in profile.compression.values())
    assert profile.flops > 1e6


def test_unknown_and_broken_profiles_are_named(tmp_path):
    with pytest.raises(ValueError, match="no device 'k80'; there are: this_cpu, geomx_k40m"):
        device.profile("k80")
    file = tmp_path / "devices.yaml"
    file.write_text("slow: {title: t, source: s, flops: -1, round_overhead_s: 0, compression: {}}")
    with pytest.raises(ValueError, match=r"(?s)devices\.yaml: profile 'slow'.*flops"):
        device.profiles(file)
