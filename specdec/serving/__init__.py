"""The OpenAI-compatible server: one thread serves HTTP, and another one decodes and is the only one to use the model."""
