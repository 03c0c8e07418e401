"""The tool's own error on this machine: what `loadgen run` reports of a server of known timing, against the truth."""
