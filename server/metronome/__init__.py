"""A server of known timing: every answer has the same TTFT and token gap, and the true instant of every send is logged.

For judging clients, ours and others; it models no batching and no load. `python -m server.metronome --help`.
"""
