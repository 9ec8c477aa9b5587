"""The block pool and the caches that take their blocks from it."""
