"""Where each argument of a call comes from: what the model was sent, and the places in it that hold the argument's value."""
