"""Secure sums without processes: the sum is exact whoever drops out, and what the server sees tells nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.errors import WireError
from bouquet.masking.coordinator import sum_of
from bouquet.masking.fixed import FixedPoint
from bouquet.masking.graph import Graph, least
from bouquet.masking.key_messages import KeysReply, KeysRequest, SharesRequest
from bouquet.masking.keys import Channels, MaskKey, Secrets, commitment, mask_public, self_mask
from bouquet.masking.masks import add_masks
from bouquet.masking.participant import Participant
from bouquet.masking.rules import Rules
from bouquet.masking.shares import combine, split
from bouquet.masking.sum_messages import AgreeRequest
from tests.masking.protocol import MODEL, ROUND, SERIES, numbers, secure_sum

STAGES = ("keys", "shares", "input", "agree", "unmask")


def plain(values, survivors):
    total = np.zeros_like(values[0])
    for node in survivors:
        total += values[node]
    return total


@pytest.mark.parametrize("bits", [32, 64])
def test_masks_cancel_and_hide(bits):
    """Without drop-outs the sum is the sum; what each node sent has nothing in common with its numbers."""
    values = numbers(5, 1000, 1, bits)
    total, survivors, seen = secure_sum(values, Rules(bits=bits))
    np.testing.assert_array_equal(total, plain(values, range(5)))
    assert survivors == [0, 1, 2, 3, 4]
    for node, sent in seen.inputs.items():
        assert np.mean(sent == values[node]) < 0.01
        # The bits of a difference that is a stream of a cipher: half of them are ones.
        ones = np.unpackbits((sent - values[node]).view(np.uint8)).mean()
        assert abs(ones - 0.5) < 0.02


@st.composite
def rounds(draw):
    nodes = draw(st.integers(3, 9))
    threshold = draw(st.sampled_from([0.4, 0.5, 2 / 3]))
    neighbors = draw(st.sampled_from([0, 2, 4]))
    lost, left = {}, list(range(nodes))
    for stage in STAGES:
        lost[stage] = draw(st.lists(st.sampled_from(left), unique=True, max_size=2)) if left else []
        left = [node for node in left if node not in lost[stage]]
    return nodes, Rules(neighbors, threshold), lost, draw(st.integers(0, 2**32))


@settings(max_examples=25, deadline=None)
@given(rounds())
def test_the_sum_over_whoever_is_left_or_no_sum(case):
    """Down to the threshold the sum is exact; below it nothing comes out, and a sentence says why."""
    nodes, rules, lost, seed = case
    values = numbers(nodes, 7, seed)
    members = nodes - len(lost["keys"])
    dead = set().union(*(lost[stage] for stage in STAGES[1:]))
    try:
        total, survivors, _ = secure_sum(values, rules, lost)
    except WireError as error:
        few = members < 3 or members - len(dead) < max(least(members, rules.threshold), 3)
        # With few neighbours enough nodes can be left, and too few of one node's neighbours.
        if not (few or 0 < rules.neighbors < members - 1):
            raise AssertionError("enough were left") from error
        return
    assert members - len(dead) >= least(members, rules.threshold)
    assert survivors == [n for n in range(nodes) if n not in {m for s in STAGES[:3] for m in lost[s]}]
    np.testing.assert_array_equal(total, plain(values, survivors))


@pytest.mark.parametrize("stage", STAGES)
def test_three_of_twenty_may_be_lost_at_any_stage(stage):
    values = numbers(20, 50, 4)
    total, survivors, _ = secure_sum(values, Rules(), {stage: [2, 11, 17]})
    np.testing.assert_array_equal(total, plain(values, survivors))
    assert len(survivors) == (17 if stage in STAGES[:3] else 20)


def test_three_of_twenty_may_be_lost_at_every_stage():
    """20, 17 with keys, 14 with shares, 11 with input, 8 that sign, 5 that reveal; 5 of 17 are more than .25."""
    values = numbers(20, 50, 5)
    lost = {stage: range(3 * at, 3 * at + 3) for at, stage in enumerate(STAGES)}
    total, survivors, _ = secure_sum(values, Rules(threshold=0.25), lost)
    assert survivors == list(range(9, 20))
    np.testing.assert_array_equal(total, plain(values, survivors))
    with pytest.raises(WireError, match=r"only 11 of 17 nodes gave input, and 12 are needed"):
        secure_sum(values, Rules(), lost)


def test_a_server_that_tells_nodes_different_survivors_learns_nothing():
    """Half are told that node 0 is in the sum, half that it is not: no set has enough signatures."""
    values = numbers(9, 5, 6)

    def change(stage, place, request):
        if stage == "agree" and place >= 5:
            return replace(request, survivors=request.survivors & (np.arange(9) != 0))
        return request

    with pytest.raises(WireError, match="has not signed who is in the sum"):
        secure_sum(values, Rules(), change=change)

    # It goes on with the signatures that it has.
    def forward(stage, place, request):
        if stage == "unmask":
            some = request.signers & (np.arange(9) < 5)
            return replace(request, signers=some, signatures=request.signatures[:5])
        return request

    with pytest.raises(WireError, match="5 nodes have signed who is in the sum, and 7 of it must"):
        secure_sum(values, Rules(), change=forward)


def test_a_node_that_was_sent_another_model_does_not_reveal_and_is_not_revealed():
    with pytest.raises(WireError, match="has not signed who is in the sum"):
        secure_sum(numbers(5, 5, 7), Rules(), models={2: b"other"})


def test_keys_that_are_not_everybodys_are_noticed_before_anything_is_given():
    """The server puts keys of its own into what node 1 is told; what that says is then about another round."""
    own = Participant.begin(KeysRequest(SERIES, ROUND))[1]

    def change(stage, place, request):
        if stage == "shares" and place == 1:
            return replace(request, keys=(own, *request.keys[1:]))
        return request

    with pytest.raises(WireError, match="not signed with the node's key"):
        secure_sum(numbers(5, 5, 8), Rules(), change=change)


def test_a_stage_is_answered_once_and_in_order():
    node, _ = Participant.begin(KeysRequest(SERIES, ROUND))
    others = [Participant.begin(KeysRequest(SERIES, ROUND))[1] for _ in range(3)]
    keys = SharesRequest(SERIES, ROUND, (KeysReply(node.secrets.public), *others))
    shared, _ = node.share(keys, Rules())
    with pytest.raises(WireError, match="asked for 'shares' after 'shares': each stage is answered once"):
        shared.share(keys, Rules())
    with pytest.raises(WireError, match="asked for 'agree' after 'shares'"):
        shared.agree(AgreeRequest(SERIES, ROUND, np.ones(4, bool)), Rules())
    with pytest.raises(WireError, match="no keys for round 4"):
        shared.agree(AgreeRequest(SERIES, 4, np.ones(4, bool)), Rules())
    with pytest.raises(WireError, match="a secure sum over 4 nodes, and this node asks for 5"):
        node.share(keys, Rules(), least=5)
    with pytest.raises(WireError, match="not among those of the round, or not once"):
        node.share(replace(keys, keys=tuple(others)), Rules())
    with pytest.raises(WireError, match="two nodes have the same key"):
        node.share(replace(keys, keys=(*keys.keys, others[0])), Rules())


def test_what_is_revealed_of_a_node_is_one_of_its_secrets():
    """Node 1 was lost before its input, node 2 after it: of the one shares of s, of the other shares of b."""
    values = numbers(6, 5, 9)
    _, _, seen = secure_sum(values, Rules(threshold=0.5), {"input": [1], "agree": [2]})
    server = seen.coordinator
    shares = {node: {} for node in (1, 2)}
    for holder, reply in seen.unmasked.items():
        for other, share in zip(server.present_neighbors(holder), reply.shares, strict=True):
            if other in shares:
                shares[other][holder] = share.tobytes()
    assert mask_public(combine(shares[1], 4)) == server.public(1)[32:64]
    assert commitment(combine(shares[2], 4)) == server.public(2)[96:]


def test_shares_that_lie_are_noticed_and_others_taken():
    """Node 2 is lost after its input, and node 0 gives a wrong share of its self-mask."""
    values = numbers(7, 5, 10)
    rules = Rules(threshold=0.5)
    _, survivors, seen = secure_sum(values, rules, {"agree": [2]})
    liar = seen.unmasked[0]
    wrong = liar.shares.copy()
    wrong[:] ^= 1
    total, _, fresh = secure_sum(values, rules, {"agree": [2]})
    # Once more with the same replies but for the lie.
    again, fresh.unmasked[0] = fresh.unmasked, replace(fresh.unmasked[0], shares=wrong)
    fresh.coordinator._total = sum_of(fresh.inputs.values())
    np.testing.assert_array_equal(fresh.coordinator.unmasked(again), plain(values, survivors))
    np.testing.assert_array_equal(total, plain(values, survivors))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(3, 12), st.sampled_from([32, 64]), st.floats(1e-3, 100), st.integers(1, 10**6), st.integers(0, 2**32)
)
def test_on_the_grid_no_sum_overflows_and_each_is_within_its_step(nodes, bits, clip, weight, seed):
    """Values at ± C w_i, the worst there is: off by half a step per node at most, and never wrapped round."""
    draw = np.random.default_rng(seed)
    weights = draw.integers(1, weight + 1, nodes).astype(float)
    grid = FixedPoint.for_sums(clip, weights.sum(), nodes, bits)
    sign = draw.choice([-1.0, 1.0, 0.3], 20)
    values = [clip * w * sign * draw.choice([1.0, draw.random()]) for w in weights]
    whole, clipped = zip(*(grid.encode(v, clip * w) for v, w in zip(values, weights, strict=True)), strict=True)
    assert sum(clipped) == 0
    total = np.zeros_like(whole[0])
    for part in whole:
        total += part
    room = nodes * grid.step / 2 * (1 + 1e-9) + 1e-12 * clip * weights.sum()
    assert np.abs(grid.decode(total) - sum(values)).max() <= room
    assert grid.step == pytest.approx(clip * weights.sum() / 2 ** (31 if bits == 32 else 53), rel=1e-6)


def test_clipping_counts_and_the_grid_refuses_what_is_not_on_it():
    grid = FixedPoint(0.5, 32)
    whole, clipped = grid.encode(np.array([0.5, -0.74, 3.0, -9.0]), 2.0)
    assert grid.decode(whole).tolist() == [0.5, -0.5, 2.0, -2.0]
    assert clipped == 2
    assert FixedPoint(2.0**-24, 64).decode(FixedPoint(2.0**-24, 64).exact(np.array([-3.5]), "x")).tolist() == [-3.5]
    with pytest.raises(WireError, match=r"'x' has values that are no multiples of 0\.5"):
        grid.exact(np.array([0.3]), "x")
    with pytest.raises(WireError, match="no sum can be made"):
        FixedPoint.for_sums(1.0, 0.0, 3)


@pytest.mark.parametrize(("nodes", "neighbors"), [(3, 0), (8, 4), (9, 3), (50, 12), (5, 10)])
def test_neighbours_are_mutual_and_as_many_as_asked(nodes, neighbors):
    graph = Graph(nodes, neighbors, 2 / 3, b"seed")
    for node in range(nodes):
        mine = graph.neighbors_of(node)
        assert len(mine) == graph.degree == len(set(mine))
        assert node not in mine
        assert all(node in graph.neighbors_of(other) for other in mine)
    assert graph.degree == (nodes - 1 if not 0 < neighbors < nodes - 1 else neighbors + neighbors % 2)
    other = Graph(nodes, neighbors, 2 / 3, b"other seed")
    if graph.degree < nodes - 2:
        assert any(graph.neighbors_of(node) != other.neighbors_of(node) for node in range(nodes))


def test_members_hang_together_or_not():
    """On a ring of six with two neighbours each, two opposite nodes cut it in two."""
    ring = Graph(6, 2, 0.5, b"seed")
    order = ring._order
    members = np.ones(6, bool)
    assert ring.is_connected(members)
    members[order[[0]]] = False
    assert ring.is_connected(members)
    members[order[[3]]] = False
    assert not ring.is_connected(members)
    assert Graph(6, 0, 0.5, b"seed").is_connected(members)


def test_shamir_shares_and_channels():
    secret = bytes(range(16))
    shares = dict(enumerate(split(secret, 3, 5)))
    assert combine({at: shares[at] for at in (4, 0, 2)}, 3) == secret
    assert len(set(shares.values())) == 5
    with pytest.raises(WireError, match="2 shares of a secret where 3 are needed"):
        combine({0: shares[0], 1: shares[1]}, 3)
    one, other = Secrets.fresh(), Secrets.fresh()
    there = Channels(one.sharing, b"T").to(other.public[:32]).close(secret, 0, 1)
    back = Channels(other.sharing, b"T").to(one.public[:32])
    assert back.open(there, 0, 1) == secret
    assert back.open(there, 1, 0) is None
    assert Channels(other.sharing, b"other T").to(one.public[:32]).open(there, 0, 1) is None
    mine, theirs = MaskKey(one.masking), MaskKey(other.masking)
    assert mine.pair(theirs.public, b"T") == theirs.pair(mine.public, b"T")
    assert mine.pair(theirs.public, b"U") != theirs.pair(mine.public, b"T")
    with pytest.raises(WireError, match="a node's public key is none"):
        mine.pair(bytes(32), b"T")


def test_masks_are_the_ciphers_own_stream_whatever_they_are_read_in():
    """Long vectors are masked piece by piece; the first numbers are those of a short one, by ChaCha20 itself."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = self_mask(bytes(16), b"T")
    size = 200_000
    total = np.zeros(size, np.uint32)
    add_masks(total, [(key, 1)])
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * size))
    np.testing.assert_array_equal(total, np.frombuffer(stream, np.uint32))
    add_masks(total, [(key, -1)])
    assert not total.any()


def test_the_model_is_what_is_signed():
    assert MODEL
    values = numbers(4, 3, 11)
    total, _, _ = secure_sum(values, Rules(), models=dict.fromkeys(range(4), MODEL))
    np.testing.assert_array_equal(total, plain(values, range(4)))
