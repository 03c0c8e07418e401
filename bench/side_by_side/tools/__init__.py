"""One module a tool: its command line for a rung, and its result files read back as `Measured`."""
