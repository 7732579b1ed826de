"""What is true of every HTTP request: authentication, problems, guards, limits, health, OpenAPI."""
