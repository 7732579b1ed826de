"""Confining the processes that tools start: what such a process may read, write and reach.

A confined process sees the system's programs, its run's workspace and a temporary directory of its own. It has no network
unless its tool declares it, and never this machine's loopback, on which the API, Temporal and the database listen. It can't
read the worker's memory or environment, nor the data directory (I13).

``sandbox`` has the values, ``machine`` finds out how this machine can confine, ``bubblewrap`` and ``landlock`` do it.
``launcher`` is the program that every confined process begins as.
"""

from __future__ import annotations
