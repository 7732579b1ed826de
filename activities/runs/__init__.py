"""What happens to a run between its steps."""
