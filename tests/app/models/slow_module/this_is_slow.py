"""Stands in for a long download."""

import time

print("downloading", flush=True)
time.sleep(60)
