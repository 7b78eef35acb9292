"""Training: the paper's regime, one loop for every network, and the runs that can be asked for by name."""
