"""Every other provider, through pydantic-ai (an extra)."""
