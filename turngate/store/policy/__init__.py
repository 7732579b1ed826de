"""Stored rules, grants, the judge's answers, and calls as they were judged."""
