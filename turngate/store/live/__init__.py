"""What goes to and comes from live runs: messages to them; deltas and progress for watchers, which are swept away."""
