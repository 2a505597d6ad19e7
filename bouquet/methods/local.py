"""No federation: every user learns alone, and nothing about the model travels."""

from __future__ import annotations

from bouquet.config import Options, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method


class LocalOptions(Options):
    """No settings of its own."""

    def check_run(self, run: RunConfig) -> None:
        if run.changes_updates:
            raise ConfigError(
                "With strategy 'local' no update leaves a node, so there is nothing for update-clip, update-noise and "
                "decoy-rows to protect: leave them out."
            )


LOCAL = Method(
    name="local",
    title="Local: every user learns alone",
    options=LocalOptions,
    strategy="strategies.local:Local",
    sends="nothing of the model",
    keeps="the whole model",
    plug_ins=False,
    no_plug_in="With strategy '{name}' no item table is shared, and personalization '{plug_in}' works on one. "
    "Choose fcf, fedavg, fedrap or pfedrec, or personalization 'none'.",
    compared_by=("FedCA", "HeteFedRec"),
)
