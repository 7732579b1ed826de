"""Rules and grants: read, try, store, revoke."""
