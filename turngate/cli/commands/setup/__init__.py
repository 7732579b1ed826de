"""Begin: make an app, watch the demo, check the machine and the models."""
