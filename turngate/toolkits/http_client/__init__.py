"""What the HTTP tools send with: allowed hosts, safe connections, bounded bodies, secret headers."""
