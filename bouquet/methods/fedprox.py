"""FedProx (Li et al., MLSys 2020): averaging whose devices are held to what the server sent."""

from __future__ import annotations

from pydantic import Field

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class FedProxOptions(ServerOptimizerOptions):
    """How strongly devices hold on to what the server sent."""

    fedprox_mu: float = Field(
        0.01,
        ge=0,
        description="Weight μ of the proximal term (μ / 2) ‖w - w^t‖² over all shared arrays; 0: FedAvg. With SGD it "
        "must stay below 2 / learning-rate.",
    )

    def check_run(self, run: RunConfig) -> None:
        if run.optimizer == "sgd" and self.fedprox_mu * run.learning_rate >= 2:
            raise ConfigError(
                f"With fedprox-mu = {self.fedprox_mu:g} and learning-rate = {run.learning_rate:g} a step overshoots "
                "what the server sent by more than it was away: their product must be below 2."
            )


FEDPROX = Method(
    name="fedprox",
    title="FedProx (Li et al., 2020)",
    options=FedProxOptions,
    strategy="strategies.fedprox:FedProx",
    device="client_app.personalization.fedprox:ProximalTerm",
    plug_ins=False,
    no_plug_in="{name} holds a device to what the server sent, and with personalization '{plug_in}' a device may start "
    "elsewhere. Choose one of them.",
    sums_only=True,
)
