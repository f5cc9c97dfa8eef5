"""OpenAI's /v1/audio/transcriptions, for models like Whisper."""
