"""The operators' inbox: requests, decisions, claims, comments, who looks."""
