"""An app against a file of cases."""
