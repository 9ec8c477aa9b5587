"""Stands in for a long download."""

import time

time.sleep(60)
