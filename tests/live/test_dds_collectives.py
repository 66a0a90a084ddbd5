"""Collectives among real processes; each test has a domain of its own."""

import socket

import dds_peers
import numpy as np
import pytest

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds import DomainConfig, Group, connect
from slowlink.testbed.live.dds.domain import DRAWN, configuration, draw
from slowlink.testbed.live.dds.segments import wire_bytes
from slowlink.testbed.live.processes import run_ranks

pytestmark = pytest.mark.slow

MIB = 1 << 20
TIMEOUT_S = 120.0


@pytest.fixture
def domain():
    return draw()


def run(function, ranks, *arguments):
    return run_ranks(function, ranks, *arguments, timeout_s=TIMEOUT_S)


def check_gathered(results, lengths):
    size = len(results)
    for rank, (answers, total, refused) in enumerate(results):
        for number, (same, payload, sent, received, wait_s) in enumerate(answers):
            label = f"tensor {number}"
            wire = [wire_bytes(lengths[number] + n, label, size - 1) for n in range(size)]
            assert same
            assert payload == lengths[number] + rank
            assert sent == wire[rank]
            assert received == sum(wire) - wire[rank]
            assert wait_s >= 0
        ranks = size * (size + 1) // 2
        np.testing.assert_array_equal(total, np.arange(6).reshape(2, 3) * ranks)
        assert not refused


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_all_gather_several_in_flight(domain, ranks):
    lengths = [0, 1, 1000, MIB, 3 * MIB + 5, 17]
    check_gathered(run(dds_peers.gather, ranks, domain, ranks, lengths), lengths)


def test_64_mib_among_four(domain):
    lengths = [64 * MIB]
    check_gathered(run(dds_peers.gather, 4, domain, 4, lengths), lengths)


def test_a_strangers_huge_sample_costs_no_memory(domain):
    grown, _ = run(dds_peers.oversize, 2, domain)
    assert grown < 50


def test_other_labels_at_the_same_step(domain):
    first, second = run(dds_peers.disagree, 2, domain, 2)
    assert first[0] == [1] and "sends 'of rank 1' where rank 0 is at" in first[1]
    assert second[0] == [0] and "sends 'of rank 0' where rank 1 is at" in second[1]


def test_one_rank_may_be_far_ahead(domain):
    times = 600  # more than may be in flight
    assert run(dds_peers.ahead, 2, domain, 2, times) == [{(b"\0", b"\1")}] * 2


def test_memory_stays_flat(domain, times=10_000):
    for early, end in run(dds_peers.many, 2, domain, 2, times):
        assert end - early < 4096  # KiB; the messages themselves are 500


# Of three processes that wait for a core, one may miss its lease of 3 s.
@pytest.mark.alone
@pytest.mark.parametrize("end", ["kill", "close"])
def test_who_dies_or_leaves_is_named(domain, end):
    *others, last = run(dds_peers.lose, 3, domain, 3, end)
    assert last is None
    for ranks, text, seconds in others:
        assert ranks == [2]
        assert text.startswith("rank 2: died or left, needed for all-gather 2 'second'")
        assert seconds < 30  # the lease is 3 s, the machine may be busy


@pytest.mark.alone
def test_a_pause_shorter_than_the_lease_only_delays(domain):
    for ranks, _, seconds in run(dds_peers.lose, 3, domain, 3, "pause"):
        assert ranks == []
        assert seconds < 30


def test_barrier_names_who_is_missing(domain):
    results = run(dds_peers.late, 3, domain, 3, 1)
    assert results.pop(1) is None
    for ranks, text in results:
        assert (ranks, text) == ([1], "rank 1: not at the barrier within 1 s")


def test_nobody_comes(domain):
    with pytest.raises(ConnectionError, match=r"^ranks 1, 2: not found .* within 0.2 s$") as lost:
        Group(0, 3, "run", domain, timeout_s=0.2)
    assert lost.value.ranks == [1, 2]


@pytest.fixture
def keys(tmp_path):
    identity.make(tmp_path / "keys", ["rank-0", "rank-1", "rank-2"])
    return tmp_path / "keys"


@pytest.mark.parametrize("without", [False, True])
def test_strangers_are_not_heard(domain, keys, tmp_path, without):
    identity.make(tmp_path / "theirs", ["rank-0", "rank-1"])
    folders = [keys, "none" if without else tmp_path / "theirs"]
    for rank, (ranks, text) in enumerate(run(dds_peers.strangers, 2, domain, folders)):
        assert ranks == [1 - rank]
        assert text.startswith(f"rank {1 - rank}: not found in the domain within 2 s")


def test_identities_are_whose_they_are(domain, keys):
    with pytest.raises(ValueError, match="no private key of rank-3"):
        Group(3, 4, "run", domain, keys=keys)
    with pytest.raises(ValueError, match="needs a folder of identities"):
        Group(0, 2, "run", domain, network=DomainConfig("nowhere"))


def test_no_member_speaks_for_another(domain, keys):
    first, _, last = run(dds_peers.acting, 3, domain, keys)
    assert first == {"tag": 50} and not last


@pytest.mark.alone
def test_who_is_revoked_is_lost_to_the_others(domain, keys):
    *others, _ = run(dds_peers.revoke, 3, domain, keys)
    for ranks, text in others:
        assert ranks == [2] and "rank 2: died or left" in text


def test_groups_one_after_the_other(domain):
    assert run(dds_peers.again, 2, domain, 3) == [[1, 1, 1]] * 2


def test_network_from_the_environment():
    network = DomainConfig.from_environment(
        {
            "SLOWLINK_INTERFACE": "eth0",
            "SLOWLINK_PEERS": "10.0.0.2, 10.0.0.3",
            "SLOWLINK_LEASE_S": "2.5",
        }
    )
    assert network == DomainConfig("eth0", ("10.0.0.2", "10.0.0.3"), 2.5)
    xml = configuration(network)
    assert 'name="eth0"' in xml and "<LeaseDuration>2.5" in xml
    assert '<Peer Address="10.0.0.2"/><Peer Address="10.0.0.3"/>' in xml
    assert 'multicast="false"' in xml and "FragmentSize" not in xml
    assert 'address="10.0.0.1" multicast="true"' in configuration(DomainConfig("10.0.0.1"))
    assert DomainConfig.from_environment({}) == DomainConfig()
    with pytest.raises(ValueError, match="SLOWLINK_LEASE_S: 'soon' is not a number of seconds"):
        DomainConfig.from_environment({"SLOWLINK_LEASE_S": "soon"})


def test_peers_without_multicast(domain):
    lengths = [MIB + 1]
    results = run_ranks(
        dds_peers.gather_as_told,
        2,
        domain,
        2,
        lengths,
        timeout_s=TIMEOUT_S,
        environment=lambda rank: {"SLOWLINK_PEERS": "127.0.0.1"},
    )
    check_gathered(results, lengths)


def test_no_process_comes_by_a_port_of_the_domains_that_are_drawn_by_chance():
    """RTPS 2.5 §9.6.1.1: 250 ports a domain from 7400; Linux gives from 32768 on."""
    assert 7400 + 250 * (max(DRAWN) + 1) <= 32768 < 7400 + 250 * (max(DRAWN) + 2)
    assert draw() in DRAWN


def test_a_domain_that_this_process_is_in_or_has_just_drawn_is_not_drawn():
    drawn = [draw() for _ in range(len(DRAWN) // 2)]
    assert len(set(drawn)) == len(drawn)
    entered = connect(drawn[0], DomainConfig())
    assert drawn[0] not in [draw() for _ in range(2 * len(DRAWN))]
    del entered
    assert drawn[0] in [draw() for _ in DRAWN]


def test_a_domain_whose_port_another_socket_has_is_named(domain):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 7400 + 250 * domain))
        with pytest.raises(ConnectionError, match=f"domain {domain}: .* the domain's ports"):
            connect(domain, DomainConfig())
    connect(domain, DomainConfig())


def test_what_cannot_be_is_refused(domain):
    with pytest.raises(ValueError, match="rank: 2 of 2, must be from 0 to 1"):
        Group(2, 2, "run", domain)
    with pytest.raises(ValueError, match="domain: 233 must be from 0 to 232"):
        connect(233, DomainConfig())
    with pytest.raises(ConnectionError, match="cannot start on interface 'nowhere'"):
        connect(domain, DomainConfig("nowhere"))
    with Group(0, 1, "run", domain, limit=10) as group:
        with pytest.raises(ValueError, match="11 bytes, at most 10 fit"):
            group.all_gather(bytes(11))
        with pytest.raises(ValueError, match="at most 255 bytes"):
            group.all_gather(b"", "x" * 300)


def test_replays_of_a_stranger_are_refused(domain, keys):
    *refused, _ = run(dds_peers.overheard, 3, domain, keys)
    for kinds in refused:
        assert kinds["replay"] > 0 and kinds["reflection"] > 0
        assert kinds.keys() == {"replay", "reflection"}


@pytest.mark.parametrize(
    "kind, who", [("stranger", "a reader that is not a member (1 here)"), ("member", "member 1")]
)
def test_a_reader_that_never_reads_holds_up_until_the_deadline(domain, tmp_path, kind, who):
    (text, took, closing), _ = run(dds_peers.unread, 2, domain, tmp_path, kind)
    assert text == f"nothing of message 'model' went out for 1 s, held up by {who}"
    assert took < 20 and closing < 20  # the machine may be busy


def test_runs_in_one_domain_are_not_heard_by_each_other(domain, tmp_path):
    found, *_ = run(dds_peers.apart, 3, domain, tmp_path)
    assert found == 1


def test_a_group_says_what_holds_it_up(domain, tmp_path):
    *ranks, _ = run(dds_peers.unread_group, 3, domain, tmp_path)
    causes = [text for kind, text, _ in ranks if kind is TimeoutError]
    assert causes and all("or a reader that is not a member (1 here)" in text for text in causes)
    assert all(took < 60 for *_, took in ranks)


def test_what_was_recorded_of_a_run_is_refused_by_the_next(domain, tmp_path, keys):
    *refused, played = run(dds_peers.recorded, 3, domain, tmp_path, keys)
    assert played >= 2 * 20
    for kinds in refused:
        assert kinds["stranger"] > 0 and kinds.keys() <= {"stranger", "reflection"}


def test_who_forges_what_a_member_says_of_itself_is_a_stranger(domain, tmp_path, keys):
    views, *_ = run(dds_peers.forge, 3, domain, tmp_path, keys)
    assert views == [({1}, []), ({1}, []), ({1}, []), (set(), [1])]


def test_an_error_on_the_receiving_thread_ends_the_rank(domain):
    *others, (text, later) = run(dds_peers.stumble, 3, domain, 3)
    assert text == later == "member 2 of slowlink_group receives no more: KeyError: 'a mistake'"
    for text, _ in others:
        assert text.startswith("rank 2: died or left")
