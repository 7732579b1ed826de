"""Operations on schedules, and keeping Temporal's in step with the store's."""
