"""Images and audio of a prompt: how messages become what the model reads, and what each pass gets of it."""
