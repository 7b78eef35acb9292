"""The parts that generated reviews are made of."""
