"""Operations on the operators' inbox: decide, claim, comment, watch."""
