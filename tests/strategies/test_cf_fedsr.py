"""CF-FedSR's stages on numpy arrays: who may take part, how many of each cluster, what each user weighs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.cf_fedsr import allocate, cluster, eligible, fair_weights

counts = st.lists(st.integers(0, 50), min_size=1, max_size=8)
served = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 500)), min_size=1, max_size=20)


def test_who_may_take_part_by_hand():
    """λ_1 = 10, λ_2 = 3: the first has the data, the second has waited, the third neither, the fourth just not."""
    found = eligible([11, 2, 2, 10], [1, 4, 3, 3], 10, 3)
    assert found.tolist() == [True, True, False, False]


@given(sizes=counts, lambda_1=st.integers(0, 60), lambda_2=st.integers(0, 60))
def test_nobody_is_shut_out_for_ever(sizes, lambda_1, lambda_2):
    """Who may take part still may one round later, and after λ_2 rounds everybody may."""
    before = np.zeros(len(sizes), dtype=bool)
    for round_ in range(1, lambda_2 + 2):
        now = eligible(sizes, np.full(len(sizes), round_), lambda_1, lambda_2)
        assert (now >= before).all()
        before = now
    assert before.all()


def test_allocation_by_hand():
    """10 of 60 + 30 + 10: quotas 6, 3, 1. 4 of 70 + 20 + 10: 2.8, 0.8, 0.4, so 2, 0, 0 and the two largest remainders
    give 3, 1, 0; the third cluster must have one, and the first, which got most above its quota, gives it."""
    assert allocate([60, 30, 10], 10).tolist() == [6, 3, 1]
    assert allocate([70, 20, 10], 4).tolist() == [2, 1, 1]
    assert allocate([5, 0, 5], 3).tolist() == [2, 0, 1]
    assert allocate([3, 2], 5).tolist() == [3, 2]
    assert allocate([1000, 1, 1, 1], 2).tolist() == [2, 0, 0, 0]


@given(sizes=counts, share=st.floats(0, 1))
def test_allocation_is_exact_and_starves_no_cluster_that_it_can_feed(sizes, share):
    sizes = np.array(sizes)
    total = round(share * int(sizes.sum()))
    drawn = allocate(sizes, total)
    assert drawn.sum() == total
    assert (drawn >= 0).all()
    assert (drawn <= sizes).all()
    if total >= (sizes > 0).sum():
        assert (drawn[sizes > 0] > 0).all()
    # Never further from the quota than feeding the small ones takes.
    quota = total * sizes / max(sizes.sum(), 1)
    assert (drawn <= np.maximum(np.ceil(quota), 1)).all()


def test_allocation_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="6 users cannot be drawn"):
        allocate([3, 2], 6)


def test_fair_weights_by_hand():
    """Two users, p = (1, 0), n = (9, 1), a = b = 1.

    p' = (1, 0), p̂ = (1/2, 1), p̂' = (1/3, 2/3). q = (.9, .1), √q in the ratio 3 : 1, q̂' = (3/4, 1/4).
    o = (1/3 + 3/4, 2/3 + 1/4) = (13/12, 11/12), Σo = 2, weights (13/24, 11/24).
    """
    np.testing.assert_allclose(fair_weights([1.0, 0.0], [9, 1], 1.0, 1.0), [13 / 24, 11 / 24], rtol=1e-15)
    np.testing.assert_allclose(fair_weights([1.0, 0.0], [9, 1], 1.0, 0.0), [1 / 3, 2 / 3], rtol=1e-15)
    np.testing.assert_allclose(fair_weights([1.0, 0.0], [9, 1], 0.0, 1.0), [3 / 4, 1 / 4], rtol=1e-15)


def test_the_printed_eq_8_would_differ():
    """Without the hats of eq. 7 the second factor would be q = (.9, .1), not (3/4, 1/4)."""
    assert not np.allclose(fair_weights([1.0, 0.0], [9, 1], 0.0, 1.0), [0.9, 0.1])


@given(served=served, a=st.floats(0.1, 2), b=st.floats(0, 2))
def test_fair_weights_fall_with_performance_and_rise_with_size(served, a, b):
    performance, sizes = (np.array(column, dtype=float) for column in zip(*served, strict=True))
    weights = fair_weights(performance, sizes, a, b)
    assert weights.sum() == pytest.approx(1)
    assert (weights > 0).all()
    for i in range(len(weights)):
        better = (performance >= performance[i]) & (sizes <= sizes[i])
        assert (weights[better] <= weights[i] + 1e-12).all()
    order = np.arange(len(weights))[::-1]
    np.testing.assert_allclose(fair_weights(performance[order], sizes[order], a, b), weights[order], rtol=1e-12)


def test_special_users():
    """Nobody is served: all alike in that factor. One user weighs 1. With b = 0 sizes do not count."""
    np.testing.assert_allclose(fair_weights([0, 0], [4, 1], 1.0, 1.0), [(0.5 + 2 / 3) / 2, (0.5 + 1 / 3) / 2])
    assert fair_weights([0.7], [3], 0.5, 0.5).tolist() == [1.0]
    assert fair_weights([0.0], [0], 0.5, 0.5).tolist() == [1.0]
    np.testing.assert_array_equal(fair_weights([1, 2], [1, 99], 0.5, 0.0), fair_weights([1, 2], [50, 3], 0.5, 0.0))


def test_among_many_users_the_performance_factor_hardly_differs():
    """What eq. 3 does: p' is divided by the number of users, so (1/2)^{p'} tends to 1. With 128 users of whom half have
    the best and half the worst performance, p' is 1/64 or 0, and the factors differ by 2^(1/64) - 1 = 1.1 %."""
    weights = fair_weights(np.repeat([2.0, 0.0], 64), np.ones(128), 1.0, 0.0)
    assert weights.max() / weights.min() == pytest.approx(2 ** (1 / 64))


@pytest.mark.parametrize(
    ("performance", "sizes", "a", "b", "complaint"),
    [
        ([1.0, -1.0], [1, 1], 1, 1, "every performance must be"),
        ([1.0, 1.0], [1, np.nan], 1, 1, "every size must be"),
        ([1.0], [1, 1], 1, 1, "of the same users"),
        ([], [], 1, 1, "of the same users"),
        ([1.0], [1], 0, 0, "not both 0"),
    ],
)
def test_what_fair_weights_refuse(performance, sizes, a, b, complaint):
    with pytest.raises(ValueError, match=complaint):
        fair_weights(performance, sizes, a, b)


@pytest.mark.parametrize("method", ["k-means", "mean-shift"])
def test_clusters_are_found(method):
    """Three heaps far from each other, of 30, 20 and 10 users."""
    random = np.random.default_rng(0)
    centres = np.array([[0.0, 0, 0, 0], [9, 0, 0, 0], [0, 9, 9, 0]])
    points = np.repeat(centres, [30, 20, 10], axis=0) + 0.1 * random.standard_normal((60, 4))
    labels = cluster(points, method, 3, seed=1)
    heaps = [set(part.tolist()) for part in np.split(labels, [30, 50])]
    assert all(len(heap) == 1 for heap in heaps)
    assert len(set.union(*heaps)) == 3
    np.testing.assert_array_equal(cluster(points, method, 3, seed=1), labels)


@pytest.mark.parametrize("method", ["k-means", "mean-shift"])
def test_clusters_of_users_who_are_alike(method):
    assert cluster(np.ones((5, 2)), method, 3, seed=0).tolist() == [0] * 5
    assert cluster(np.zeros((1, 2)), method, 3, seed=0).tolist() == [0]
    few = cluster(np.array([[0.0], [0.0], [0.0], [1.0]]), method, 5, seed=0)
    assert len(few) == 4
    assert few[0] == few[1] == few[2]


@pytest.mark.parametrize("method", ["k-means", "mean-shift"])
@given(data=st.data())
@settings(max_examples=15)
def test_any_users_can_be_clustered(method, data):
    """One user, two, all alike, some alike, alike but for rounding; few or many dimensions, any scale and place."""
    different = data.draw(st.integers(1, 8), label="different")
    random = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))
    dimensions = data.draw(st.sampled_from([1, 2, 16, 64]), label="dimensions")
    scale = data.draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e6]), label="scale")
    place = data.draw(st.sampled_from([0.0, 1.0, 1e3]), label="place")
    noise = data.draw(st.sampled_from([0.0, 1e-12, 1e-9, 1e-7, 1e-5]), label="noise")
    copies = data.draw(st.lists(st.integers(1, 5), min_size=different, max_size=different), label="copies")
    heaps = np.repeat(random.standard_normal((different, dimensions)), copies, axis=0)
    points = (scale * (place + heaps + noise * random.standard_normal(heaps.shape))).astype(np.float32)
    labels = cluster(points, method, data.draw(st.integers(1, 20), label="clusters"), seed=0)
    assert labels.shape == (len(points),)
    assert labels.min() >= 0
    _, who = np.unique(points, axis=0, return_inverse=True)
    assert all(len(set(labels[who == one])) == 1 for one in np.unique(who)), "users who are alike are together"


@pytest.mark.parametrize("dimensions", [1, 2, 8])
def test_mean_shift_of_two_heaps_one_of_which_is_a_point(dimensions):
    """Half of the users are the same one: the nearest third of each is at distance 0, and no bandwidth at all."""
    heap = 9 + 0.1 * np.random.default_rng(0).standard_normal((10, dimensions))
    labels = cluster(np.concatenate([np.zeros((10, dimensions)), heap]), "mean-shift", 0, seed=0)
    assert len(set(labels[:10])) == 1
    assert set(labels[:10]).isdisjoint(labels[10:])


def test_mean_shift_of_more_users_than_it_is_fitted_to():
    random = np.random.default_rng(0)
    points = np.concatenate([random.standard_normal((1500, 2)), 50 + random.standard_normal((500, 2))])
    labels = cluster(points, "mean-shift", 0, seed=0)
    assert len(labels) == 2000
    assert set(labels[:1500]).isdisjoint(labels[1500:])
