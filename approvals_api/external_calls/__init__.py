"""Operations on calls that another program runs."""
