"""The device side of FedFast (Muhammad et al., KDD 2020): a user trains as in averaging, and tells its profile."""

from __future__ import annotations

from bouquet.methods.fedfast import FedFastOptions
from client_app.personalization.profiles import Profiled


class Delegate(Profiled):
    """A user by whose profile the server finds those who are like it."""

    options: FedFastOptions
