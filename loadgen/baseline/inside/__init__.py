"""Scripts that run in the target's Python: they import what is installed there, and nothing of loadgen."""
