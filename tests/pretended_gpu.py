"""A GPU that is not there: tensors "on" it are kept in host memory, and may only meet each other, as on a real one.

What runs on a GPU fails on the first line that forgets to move something there or back; this finds such lines where no
GPU is. Values are those of the processor, so a run on it equals the run without. What it cannot show is how a real GPU
rounds, how fast it is, and kernels that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
# Before anything is differentiated in this process: torch counts the devices of gradients once. It believes in one kind
# of accelerator, so beside a pretended one a real one could not differentiate.
if not torch.cuda.is_available():
    _setup_privateuseone_for_python_backend(NAME)

# These may read from one device and write to another.
_MOVES = ("aten::_to_copy", "aten::copy_")


class _There(torch.Tensor):
    """What Python sees of a tensor on the pretended GPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> _There:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=torch.device(NAME, 0)
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a tensor of a GPU that is gone")


class PretendedGPU(TorchDispatchMode):
    """While it is entered, "cuda" is the pretended device.

    Attributes:
        moved: how many tensors were moved there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        there = any(isinstance(value, _There) for value in tensors)
        name = func.name()
        if there and name not in _MOVES:
            # A single number of the host may meet anything.
            here = [value for value in tensors if not isinstance(value, _There) and value.ndim]
            if here:
                raise RuntimeError(f"{name} was given tensors on two devices, the GPU and the processor")
        if (asked := kwargs.get("device")) is not None:
            there = torch.device(asked).type in ("cuda", NAME)
            kwargs["device"] = torch.device("cpu")
            self.moved += there and name == "aten::_to_copy"
        found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        written = [i for i, one in enumerate(func._schema.arguments) if one.alias_info and one.alias_info.is_write]
        if written and written[0] < len(args):
            return args[written[0]]
        return tree_map(_there, found) if there else found


def _held(value: Any) -> Any:
    return value.held if isinstance(value, _There) else value


def _there(value: Any) -> Any:
    return _There(value) if isinstance(value, Tensor) else value


@contextmanager
def pretended_gpu() -> Iterator[PretendedGPU]:
    """One GPU, as far as anybody asks."""
    count, available = patch("torch.cuda.device_count", lambda: 1), patch("torch.cuda.is_available", lambda: True)
    with count, available, patch("torch.cuda._lazy_init", lambda: None), PretendedGPU() as mode:
        yield mode
