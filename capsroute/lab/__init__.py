"""Experiments and tools around the library: data, encoders, training, analysis, reports, the page, the command line."""
