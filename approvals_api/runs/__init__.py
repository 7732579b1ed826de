"""Operations on runs: start, steer, fork, retry, dry-run, compare, explain."""
