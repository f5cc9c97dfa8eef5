"""The OpenAI-compatible server: one thread serves HTTP; another one decodes, and only this thread uses the model."""
