"""What can be read out of what a run sends and publishes: probes of privacy, which play the one who reads."""
