"""What all methods share: who is there, what is sent and received, what is kept."""
