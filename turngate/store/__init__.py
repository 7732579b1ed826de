"""Conversations, runs, steps, calls, requests, executions, events and access: what must survive, in SQL.

One module per noun. Each function takes an open connection, so that the caller decides what one transaction holds.
Must not import temporalio, workflows, activities or the API.
"""
