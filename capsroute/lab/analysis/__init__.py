"""Numbers from trained networks: accuracy, deletion curves, poses."""
