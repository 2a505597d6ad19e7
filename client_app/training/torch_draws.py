"""The numbers of `bouquet.randomness` computed where tensors are, bit for bit: a GPU need not wait for the host's.

torch has no 64-bit words without a sign. The sum and the product of signed ones have the same bits, and a shift to the
right must not copy the sign down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bouquet.randomness import GOLDEN, MIX_1, MIX_2, Words

_GOLDEN, _MIX_1, _MIX_2 = (int(word) - 2**64 for word in (GOLDEN, MIX_1, MIX_2))


def uniforms_there(streams: Words, first: int, count: int, device: torch.device) -> Tensor:
    """[k, count] float64, uniform in [0, 1): `uniforms(draw(streams[:, None], first + arange(count)))`."""
    counter = torch.arange(first + 1, first + 1 + count, device=device)
    stream = torch.from_numpy(streams.view("int64")).to(device)
    words = _mix(stream.unsqueeze(1) + counter * _GOLDEN)
    return _shifted(words, 11).double() * 2.0**-53


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shifted(words, 30)) * _MIX_1
    words = (words ^ _shifted(words, 27)) * _MIX_2
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, places: int) -> Tensor:
    return (words >> places) & (2 ** (64 - places) - 1)
