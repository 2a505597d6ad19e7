"""Ways to run the same ServerApp and ClientApp: Flower's simulation, or one process."""
