"""The chat-completions wire that OpenAI and most others speak."""
