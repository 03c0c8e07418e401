"""Starts a real vLLM: its command line, the proof that the one that answers is ours, its end, and why it did not start."""
