"""Methods whose model is made of sums over users and of nothing else; a file is named as its method."""
