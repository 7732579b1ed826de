"""Side effects behind small ports: call the model, run a tool, record a decision, close a step. One module each."""
