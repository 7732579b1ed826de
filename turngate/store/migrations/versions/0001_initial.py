"""The schema of the first release.

A new database has the newest schema at once (:mod:`turngate.store.tables.new_database`). What a later release changes is a
migration, for the databases that are there already.
"""

from __future__ import annotations

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None
