"""Speeds without a server: one request by transformers, a batch by vLLM's own `LLM.generate`, each with its conditions."""
