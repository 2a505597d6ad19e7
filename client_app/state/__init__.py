"""What a node keeps of its users between messages."""
