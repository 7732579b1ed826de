"""The pages of schedules, and the form that makes and changes one."""
