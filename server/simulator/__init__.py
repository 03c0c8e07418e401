"""An OpenAI-compatible server with vLLM's observable behaviour, known timing, and a log of what really happened."""
