"""The Agent Client Protocol on stdio: editors drive runs and answer gates."""
