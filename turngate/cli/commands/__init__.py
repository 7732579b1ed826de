"""What each command does: a folder per group of commands."""
