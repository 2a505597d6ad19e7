"""One module per family of raw files; each turns a folder into a table of events."""
