"""Other ways to drive Turngate, each a translation of the public API: JSON-RPC and the Agent Client Protocol on stdio.

Stands on :mod:`turngate.client` alone: a driver can do what its token may do, and nothing besides (I10).
"""
