"""Scaffold (Karimireddy et al., ICML 2020): control variates against the drift of devices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class ScaffoldOptions(ServerOptimizerOptions):
    """How a device renews its control variate."""

    scaffold_option: Literal["I", "II"] = Field(
        "II",
        description="A device's next control variate: the gradient of its loss at what the server sent (I, which costs "
        "one more pass), or the mean gradient of the steps that it took (II).",
    )

    def check_run(self, run: RunConfig) -> None:
        if run.optimizer != "sgd":
            raise ConfigError("scaffold corrects the steps of SGD: take optimizer = 'sgd'.")
        if run.changes_updates:
            raise ConfigError(
                "scaffold's server must know the exact changes of control variates, so update-clip, update-noise and "
                "decoy-rows do not fit it: leave them out."
            )


SCAFFOLD = Method(
    name="scaffold",
    title="Scaffold (Karimireddy et al., 2020)",
    options=ScaffoldOptions,
    strategy="strategies.scaffold:Scaffold",
    device="client_app.personalization.scaffold:ControlVariates",
    sends="changes of all shared arrays, and of its control variate of each",
    keeps="the user embedding, and its control variates",
    plug_ins=False,
    no_plug_in="{name} corrects what training does to shared arrays, and with personalization '{plug_in}' a device may "
    "train others. Choose one of them.",
)
