"""Forms of a JSON Schema: their fields, what is typed into them, and what that says as JSON.

Pure functions of values. The pages and the terminal UI draw them.
"""
