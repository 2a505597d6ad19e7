"""The device: hosted users, private state, local training, evaluation."""
