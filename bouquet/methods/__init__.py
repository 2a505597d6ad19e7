"""What both sides of a method must agree on: settings and rules that server and device compute alike."""
