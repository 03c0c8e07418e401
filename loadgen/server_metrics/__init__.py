"""What the server under test says of itself: its /metrics and the GPUs of this host, sampled while a level is measured."""
