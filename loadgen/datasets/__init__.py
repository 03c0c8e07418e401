"""Requests out of files: conversations, prompts, whole bodies and traces, read in a stream and drawn by seed."""
