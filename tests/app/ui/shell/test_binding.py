"""The Qt binding itself, where it once took the whole app down."""

from __future__ import annotations

import sys

from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot


def test_the_app_died_with_none_dealloc_after_some_minutes_of_streaming(qtbot: QtBot) -> None:
    """PySide6 6.12.0 on Python 3.11: each call that returns None used up one of None's references."""
    label = QLabel()
    qtbot.addWidget(label)
    label.setText("warm")
    before = sys.getrefcount(None)
    for _ in range(1_000):
        label.setText("still here")
    assert abs(sys.getrefcount(None) - before) < 100
