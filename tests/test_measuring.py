"""What is timed is the whole of a codec's work, and only once a step."""

import pytest
import torch

from slowlink.methods import compression
from slowlink.testbed import measuring


class Clock:
    """Time that passes only where it is told to."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Stepping(compression.Compressor):
    """Two rounds whose parts take known times."""

    one_shot = False

    def encode(self, tensor, key):
        self.asked.append(key)
        self.clock.now += 1
        yield self._dense(tensor, tensor.shape), "sum"
        self.clock.now += 10
        answer = yield self._dense(tensor, tensor.shape), "gather"
        self.clock.now += 100 * (1 + self.asked.count(key))
        return self._read_dense(answer[0], "cpu")


def test_every_part_of_a_codec_with_two_rounds_is_counted_once(monkeypatch):
    clock, codec = Clock(), Stepping()
    codec.asked, codec.clock = [], clock
    monkeypatch.setattr(measuring, "time", clock)
    times = measuring.coding(lambda: codec, [torch.ones(3), torch.ones(2)], repeats=3)
    assert codec.asked == [0, 1] * 4
    # Decoding takes 2, 3, 4, 5 hundred a tensor; the first is left out, and 4 is the middle.
    assert (times.first_s, times.further_s, times.decode_s) == (2, 20, 800)
    assert times.encode_s == 22 and times.total_s == 822


@pytest.mark.parametrize("name", compression.names())
def test_every_codec_can_be_timed(name):
    times = measuring.coding(lambda: compression.load(name), [torch.ones(40, 50)], repeats=1)
    assert times.encode_s > 0 and times.decode_s > 0
    assert (times.further_s > 0) == (not compression.load(name).one_shot)


@pytest.mark.slow
def test_references_do_what_they_are_named_after():
    tensors = [torch.randn(30, 20), torch.randn(7)]
    assert measuring.copy_s(tensors[0], 2) > 0
    assert measuring.torch_topk_s(tensors[0].flatten(), 5, 2) > 0
    assert measuring.torch_power_sgd_s(tensors, 2, 2) > 0
    assert not torch.distributed.is_initialized()
