"""What the JSON API sends and takes, as pydantic models: written by ``approvals_api``, read by :mod:`turngate.client`.

One definition for both sides, one module per noun. Imports pydantic and ``turngate.domain`` only, so that a client needs
neither a server nor a store to read a response.
"""
