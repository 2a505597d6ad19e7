"""My method: FedProx (Li et al., 2020) on the devices, FedAvgM (Hsu et al., 2019) on the server.

    device   L_u = BCE + μ/2 ‖V_u - V‖², V the item table as it came from the server
    server   m ← β m + Δ,   V ← V + η m,   Δ the mean of the users' changes

This file is read by server and devices alike. So it imports neither half: the manifest says where they are.
"""

from bouquet.extend import Field, Method, Options


class MyOptions(Options):
    """How near devices stay, and how the server moves."""

    my_method_mu: float = Field(0.01, ge=0, description="Weight μ of the distance from the common item table.")
    my_method_momentum: float = Field(0.5, ge=0, lt=1, description="Momentum β of the server.")
    my_method_rate: float = Field(100.0, gt=0, description="Rate η of the server's step.")


MY_METHOD = Method(
    name="my-method",
    title="My method (FedProx and FedAvgM)",
    options=MyOptions,
    strategy="my_method.server:Momentum",
    device="my_method.device:StayNear",
    plug_ins=False,
)
