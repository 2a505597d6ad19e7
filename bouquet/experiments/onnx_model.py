"""The reported model of a run as ONNX, for programs that know neither torch nor bouquet.

    input   items [n, L] and lengths [n], of a model that reads a history in order: rows of items.csv, the oldest first,
            the newest L at most (max-length), padded at their end with anything, 0 for example
            else a person's private arrays, user_embedding [n, d] for example, and history [n, m], 1 for a known item,
            where the model reads what is known
    output  scores [n, m] of all items; known ones are not left out

n is free. The graph holds what all users share. What a personalization makes of that on a device is not in it.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from bouquet.config import Settings, parsed
from bouquet.errors import ConfigError
from bouquet.extras import need
from bouquet.published import PublishedModel
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.groups import models_of
from models import HISTORY, Backbone, is_sequential

if TYPE_CHECKING:
    import torch

NAME = "model.onnx"
_EXAMPLES = 3
_OPSET = 20


def onnx_of(directory: RunDirectory) -> bytes:
    """The graph.

    Raises:
        ConfigError: a package is missing, or this method has no such model.
        DataError: there is no finished run, or it kept no model.
    """
    for module in ("torch", "onnx", "onnxscript"):
        need(module, "An ONNX graph")
    best = int(directory.read_summary().get("best_round") or 0)
    model = directory.reported.read_model(best)
    settings = parsed(directory.read_config())
    backbone = _backbone(settings, model)
    return _graph(backbone, model, settings)


def _backbone(settings: Settings, model: PublishedModel) -> Backbone:
    """Raises: ConfigError: the arrays are not those of one backbone."""
    tables = [values.shape[0] for name, values in model.arrays.items() if name == "item_embedding"]
    found = models_of(settings, num_items=tables[0]) if tables else ()
    if len(found) == 1:
        backbone = found[0].backbone
        if all(
            name in model.arrays and model.arrays[name].shape == spec.shape for name, spec in backbone.shared.items()
        ):
            return backbone
    raise ConfigError(
        f"What all users of {settings.run.strategy} share is no model that scores on its own: take the arrays in "
        "model.safetensors, or recommendations.parquet."
    )


def _graph(backbone: Backbone, model: PublishedModel, settings: Settings) -> bytes:
    import torch

    scorer = _scorer(backbone, model)
    names, inputs = _inputs(backbone, model.arrays["item_embedding"].shape[0])
    users = torch.export.Dim("users")
    # It warns of packages that nobody here uses.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            scorer,
            inputs,
            input_names=names,
            output_names=["scores"],
            dynamic_shapes=(tuple({0: users} for _ in inputs),),
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    about = {"strategy": model.strategy, "backbone": settings.run.backbone, "round": str(model.round)}
    for key, value in about.items():
        graph.metadata_props.add(key=key, value=value)
    content: bytes = graph.SerializeToString()
    return content


def _inputs(backbone: Backbone, num_items: int) -> tuple[list[str], tuple[torch.Tensor, ...]]:
    """Names and examples of what goes in."""
    import torch

    if is_sequential(backbone):
        length = backbone.settings.max_length
        items = torch.zeros(_EXAMPLES, length, dtype=torch.int64)
        return ["items", "lengths"], (items, torch.full((_EXAMPLES,), length, dtype=torch.int64))
    shapes = {name: spec.shape for name, spec in backbone.private.items()}
    if backbone.reads_history:
        shapes[HISTORY] = (num_items,)
    return list(shapes), tuple(torch.zeros(_EXAMPLES, *shape) for shape in shapes.values())


def _scorer(backbone: Backbone, model: PublishedModel) -> Any:
    import torch

    class Scorer(torch.nn.Module):
        """The backbone with its shared arrays as constants."""

        def __init__(self) -> None:
            super().__init__()
            for name in backbone.shared:
                self.register_buffer(name, torch.from_numpy(model.arrays[name].astype("float32")))

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            shared = {name: getattr(self, name) for name in backbone.shared}
            if is_sequential(backbone):
                items, lengths = inputs
                states = backbone.states(shared, torch.nn.functional.embedding(items, shared["item_embedding"]))
                last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
                return states.gather(1, last).squeeze(1) @ shared["item_embedding"].T
            count = inputs[0].shape[0]
            of_all = {name: values.expand(count, *values.shape) for name, values in shared.items()}
            return backbone.logits(dict(zip(_inputs(backbone, 1)[0], inputs, strict=True)), of_all)

    return Scorer().eval()
