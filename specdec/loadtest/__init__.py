"""Load on any OpenAI-compatible server: requests that come as they come, and what their senders had to wait."""
