"""The OpenAI-compatible server: HTTP on one thread, and one that decodes, which alone touches the model."""
