"""Sequence backbones against torch's own networks, user by user, and their hand-written gradient."""

import numpy as np
import pytest
import torch

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions
from bouquet.errors import ConfigError
from models import BACKBONES
from models.gru4rec_recurrence import recur
from models.sequence import STATE, SequenceBackbone, SequenceOptions

NAMES = sorted(name for name, backbone in BACKBONES.items() if issubclass(backbone, SequenceBackbone))
USERS, LENGTH, SIZE, ITEMS = 3, 7, 4, 20


def made(name, **own):
    """A backbone, random arrays of each of three users in float64, and embeddings of seven items."""
    backbone = BACKBONES[name](ITEMS, ModelOptions(embedding_size=SIZE), SequenceOptions(max_length=9, **own))
    source = torch.Generator().manual_seed(3)
    arrays = {
        n: torch.randn(USERS, *s.shape, generator=source, dtype=torch.float64) for n, s in backbone.shared.items()
    }
    embedded = torch.randn(USERS, LENGTH, SIZE, generator=source, dtype=torch.float64)
    return backbone, arrays, embedded


def test_the_recurrent_network_is_torchs():
    """Every user's weights in a `torch.nn.GRU` of its own; torch keeps the weights transposed."""
    backbone, arrays, embedded = made("gru4rec")
    found = backbone.states(arrays, embedded)
    for user in range(USERS):
        own = {name: values[user] for name, values in arrays.items()}
        unit = torch.nn.GRU(SIZE, SIZE, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            unit.weight_ih_l0.copy_(own["input_weight"].T)
            unit.weight_hh_l0.copy_(own["hidden_weight"].T)
            unit.bias_ih_l0.copy_(own["input_bias"])
            unit.bias_hh_l0.copy_(own["hidden_bias"])
        hidden, _ = unit(embedded[user : user + 1])
        expected = hidden[0] @ own["output_weight"] + own["output_bias"]
        torch.testing.assert_close(found[user], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_attention_network_is_torchs(heads):
    """Built anew for each user from torch's layer norm, attention and linear maps."""
    backbone, arrays, embedded = made("sasrec", sasrec_heads=heads)
    found = backbone.states(arrays, embedded)

    def norm(x, gain, shift):
        return torch.nn.functional.layer_norm(x, (SIZE,), 1 + gain, shift, eps=1e-8)

    def split(x):
        return x.view(LENGTH, heads, SIZE // heads).transpose(0, 1)

    for user in range(USERS):
        own = {name: values[user] for name, values in arrays.items()}
        x = embedded[user] + own["position_embedding"][:LENGTH]
        for block in range(2):
            one = {name: values[block] for name, values in own.items() if values.shape[0] == 2}
            seen = norm(x, one["attention_gain"], one["attention_shift"])
            parts = [split(seen @ one[name]) for name in ("query", "key", "value")]
            attended = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + attended.transpose(0, 1).reshape(LENGTH, SIZE)
            seen = norm(x, one["forward_gain"], one["forward_shift"])
            inner = torch.relu(seen @ one["first_weight"] + one["first_bias"])
            x = x + inner @ one["second_weight"] + one["second_bias"]
        expected = norm(x, own["last_gain"], own["last_shift"])
        torch.testing.assert_close(found[user], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("own_weights", [True, False], ids=["weights of each user", "one set of weights"])
def test_the_gradient_of_the_recurrence(own_weights):
    """By hand against finite differences, for weights of each user and for common ones."""
    source = torch.Generator().manual_seed(1)
    lead = (USERS,) if own_weights else ()
    shapes = [(USERS, 4, 6), (*lead, 2, 6), (*lead, 6)]
    inputs = [torch.randn(s, generator=source, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(recur, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_later_counts(name):
    """h_t does not change with what comes after t: padding at the end is harmless, and no answer is given away."""
    backbone, arrays, embedded = made(name)
    changed = embedded.clone()
    changed[:, 4:] = 100.0
    before, after = backbone.states(arrays, embedded), backbone.states(arrays, changed)
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=1e-12)
    assert (after[:, 4:] - before[:, 4:]).abs().max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_common_weights_are_every_users_weights(name):
    backbone, arrays, embedded = made(name)
    common = {n: values[0] for n, values in arrays.items()}
    repeated = {n: values.expand(USERS, *values.shape) for n, values in common.items()}
    torch.testing.assert_close(backbone.states(common, embedded), backbone.states(repeated, embedded))
    inputs = torch.tensor([[0, 3], [5, 5], [9, 1]])
    candidates = torch.arange(12).view(3, 2, 2)
    one, all_of_them = (backbone.next_logits(a, inputs, candidates) for a in (common, repeated))
    torch.testing.assert_close(one, all_of_them)


@pytest.mark.parametrize("name", NAMES)
def test_what_training_sees_is_what_is_recommended_with(name):
    """The logits at the last place equal the scores of a device that has read the same items."""
    backbone, arrays, _ = made(name)
    inputs = torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]])
    lengths = torch.tensor([3, 2, 1])
    candidates = torch.arange(ITEMS).expand(USERS, 3, ITEMS)
    trained = backbone.next_logits(arrays, inputs, candidates)
    embedded = torch.stack([arrays["item_embedding"][user][inputs[user]] for user in range(USERS)])
    private = backbone.read(arrays, embedded, lengths)
    assert private[STATE].shape == (USERS, SIZE)
    scores = backbone.scores(private, arrays)
    for user, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(scores[user], trained[user, length - 1])


def test_networks_start_finite_and_alike():
    for name in NAMES:
        backbone = BACKBONES[name](ITEMS, ModelOptions(embedding_size=SIZE))
        arrays = initial_shared(backbone.shared, seed=0)
        assert all(np.isfinite(values).all() for values in arrays.values())
        assert [n for n, spec in backbone.shared.items() if spec.by_item] == ["item_embedding"]
        assert backbone.private == {}


@pytest.mark.parametrize("scale", [0, 1e-6, 1e-3])
def test_a_place_that_dropout_emptied_does_not_end_the_network(scale):
    """Of the first place all entries are dropped, and biases are 0, as at the start, or have begun to move.

    Left at that, its norms would divide by √1e-8, or by the biases' length: gradients 10,000 times as large and more,
    and the shift below takes that step.
    """
    backbone, arrays, embedded = made("sasrec")
    zeros = [name for name, spec in backbone.shared.items() if spec.init == "zeros"]
    arrays |= {name: scale * arrays[name] for name in zeros}
    pull = torch.randn(USERS, LENGTH, SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def steepest(kept):
        shifts = arrays["attention_shift"].clone().requires_grad_()
        states = backbone.states(
            arrays | {"attention_shift": shifts}, embedded, lambda x, site: x * kept if site == 0 else x
        )
        (states * pull).sum().backward()
        return shifts.grad.abs().max().item()

    kept = torch.ones(LENGTH, 1, dtype=torch.float64)
    whole = steepest(kept)
    kept[0] = 0
    assert steepest(kept) < 10 * whole


def test_heads_must_divide_the_size():
    with pytest.raises(ConfigError, match="3 does not divide 4"):
        BACKBONES["sasrec"](ITEMS, ModelOptions(embedding_size=SIZE), SequenceOptions(sasrec_heads=3))
