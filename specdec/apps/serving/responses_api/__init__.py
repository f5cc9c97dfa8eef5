"""OpenAI's /v1/responses without memory: each request has the whole conversation."""
