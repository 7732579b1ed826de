"""Text as values: JSON without loss, pointers into it, characters that hide, durations in words."""
