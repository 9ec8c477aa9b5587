"""Where the packaged app starts."""

from __future__ import annotations

import os
import sys

# The boot loader makes the dynamic loader look into the bundle first. That is done by now, and programs that the app
# opens (a browser, a file manager) must not load their libraries from here.
before = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
if before is not None:
    os.environ["LD_LIBRARY_PATH"] = before
else:
    os.environ.pop("LD_LIBRARY_PATH", None)

from app.__main__ import main  # noqa: E402

sys.exit(main())
