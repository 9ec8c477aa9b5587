"""The right side: what every chat and the pool hold now, and the budget that all share."""
