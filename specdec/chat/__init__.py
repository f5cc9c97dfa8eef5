"""A conversation with a chat model: its turns, how the model is asked, and the commands of whoever talks to it."""
