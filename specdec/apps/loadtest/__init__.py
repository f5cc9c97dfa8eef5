"""Load tests of any OpenAI-compatible server: random or concurrent requests, and their latencies."""
