"""Real steps of replicas of different width take exactly what `cost.Cluster` and `cost.narrow_speed` say."""

from __future__ import annotations

import pytest
from slices import few

import labkit
from labkit import cost
from labkit.models import GPTConfig
from labkit.resilience.ntp.pacing import paced_step
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

MODEL = GPTConfig(vocab=61, context=12, layers=2, heads=12, width=48, expansion=4)
UNEVEN = GPTConfig(vocab=61, context=12, layers=2, heads=8, width=32, expansion=3)
PARTS = 0.4


def work(config):
    return ((config.heads, PARTS), (config.width * config.expansion, 1 - PARTS))


@pytest.mark.parametrize("config", [MODEL, UNEVEN], ids=["12 heads", "8 heads"])
@pytest.mark.parametrize("widths", few([(3, 2, 4), (2, 1), (1, 1), (4, 4), (4, 3), (4, 2), (7, 8)], one=True), ids=str)
def test_a_step_is_as_long_as_its_slowest_replica(config, widths):
    full, batch = max(widths), 2
    step = paced_step(config, widths, [batch] * len(widths), full, attention=PARTS)
    slowest = max(batch / cost.narrow_speed(width, full, work(config)) for width in widths)
    assert step.seconds == pytest.approx(slowest, rel=1e-8) and step.samples == batch * len(widths)


@pytest.mark.parametrize("failed", few([1, 0, 2]))
@pytest.mark.parametrize("method", ["dp-drop", "ntp", "ntp-pw"])
def test_the_cluster_model_has_the_throughput_of_a_real_step(failed, method):
    """Two replicas of 8 ranks, one of which has lost some: 16 ranks at most."""
    config = GPTConfig(vocab=61, context=12, layers=1, heads=56, width=112, expansion=6)
    cluster = cost.Cluster(domains=2, gpus_per_domain=8, domains_per_replica=1, widths=(8, 7, 6), samples=4)
    batch, power = cluster.local_batches(method)[failed], cluster.powers(method)[failed]
    widths, batches, speeds = [8], [4], [1.0]
    if batch:
        widths, batches = [8, 8 - failed], [4, batch]
        speeds = [1.0, cluster.boost.speed(power)]
    step = paced_step(config, widths, batches, 8, speeds=speeds)
    pace = 4.0 if failed < 2 else max(4.0, batch / speeds[-1] / cost.narrow_speed(8 - failed, 8, work(config)))
    assert step.seconds == pytest.approx(pace, rel=1e-6)
    said = 1 - float(cluster.use([0, failed], method).loss)
    if failed < 2:  # 56 heads divide by 8 and by 7, and not by 6
        assert step.throughput / 2 == pytest.approx(said, rel=1e-6)


def test_messages_come_on_top():
    slow = labkit.Network(nodes=1, ranks_per_node=3, intra=labkit.Link(latency=1e-3))
    free, sends = (paced_step(MODEL, (2, 1), (2, 1), 2, network=network) for network in (None, slow))
    assert free.seconds == pytest.approx(2.0) and 2.0 < sends.seconds < 2.1


def test_each_width_needs_a_batch_and_a_speed():
    with pytest.raises(RefusedError, match="a batch and a speed"):
        paced_step(MODEL, (4, 3), (4,), 4)
    with pytest.raises(RefusedError, match="a batch and a speed"):
        paced_step(MODEL, (4, 3), (4, 3), 4, speeds=[1.0])


@pytest.mark.parametrize("attention", [0.0, 0.25, 1.0])
def test_attention_is_cut_by_heads_and_the_rest_by_columns(attention):
    """8 heads on 3 of 4 ranks: the fullest holds 3 where 2 are usual; of 96 columns it holds 32 where 24 are."""
    step = paced_step(UNEVEN, (4, 3), (1, 1), 4, attention=attention)
    assert step.seconds == pytest.approx(attention * 3 / 2 + (1 - attention) * 32 / 24)


@pytest.mark.parametrize(
    ("batches", "sample", "speeds", "seconds"),
    [
        ((4, 3), 1.0, (1.0, 1.0), 4.0),  # 3 samples on 3 of 4 ranks are done in time
        ((4, 4), 1.0, (1.0, 1.0), 16 / 3),
        ((4, 4), 1.0, (1.0, 4 / 3), 4.0),  # with as much more power nobody waits
        ((4, 4), 1.0, (0.5, 1.0), 8.0),  # the whole replica is the slow one
        ((1, 3), 0.5, (1.0, 1.0), 2.0),
    ],
)
def test_work_batch_and_speed_make_the_time_and_the_slowest_sets_it(batches, sample, speeds, seconds):
    step = paced_step(MODEL, (4, 3), batches, 4, sample=sample, speeds=speeds)
    assert step.seconds == pytest.approx(seconds) and step.samples == sum(batches)
    assert step.throughput == pytest.approx(sum(batches) / seconds)


@pytest.mark.long
def test_the_time_of_messages_is_in_proportion_to_their_latency_and_narrow_replicas_send_more():
    def extra(widths, latency, bandwidth=1e12):
        link = labkit.Link(bandwidth=bandwidth, latency=latency)
        network = labkit.Network(nodes=1, ranks_per_node=sum(widths), intra=link)
        return paced_step(MODEL, widths, [1] * len(widths), 4, network=network).seconds - free[widths]

    free = {widths: paced_step(MODEL, widths, [1] * len(widths), 4).seconds for widths in ((4,), (4, 4), (4, 3))}
    once, ten_times = extra((4, 3), 1e-4), extra((4, 3), 1e-3)
    assert once > 10e-4 and ten_times == pytest.approx(10 * once, rel=0.02)
    assert extra((4, 4), 0.0, 1e6) > 1.2 * extra((4,), 0.0, 1e6)  # gradients of replicas are really added: bytes
    assert extra((4, 3), 1e-3) > extra((4, 4), 1e-3)  # and shards move before and after


def test_by_a_real_clock_stand_ins_sleep_at_least_as_long():
    step = paced_step(MODEL, (2, 1), (2, 2), 2, sample=0.02, clock="real", steps=3)
    kernels = 0.02 * 2 / cost.narrow_speed(1, 2, work(MODEL))
    assert step.seconds > kernels + 1e-5  # by the virtual clock it would be just that
    with pytest.raises(RefusedError, match="steps=0: one or more"):
        paced_step(MODEL, (2, 1), (2, 2), 2, steps=0)
