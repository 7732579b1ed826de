"""Operations on policy: stored rules, grants, and reports on both."""
