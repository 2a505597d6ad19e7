"""Device-side methods: what a device makes of the shared model. 'none' uses it as it is."""

PERSONALIZATIONS: dict[str, None] = {"none": None}
