"""A conversation with a chat model: its turns, its requests to the model, and its commands."""
