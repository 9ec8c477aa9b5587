"""Links that a model wrote: shown, and opened only after asking."""

from __future__ import annotations

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.ui.look.confirm import confirm
from app.ui.look.words import elided

# Anything else in a link is shown but never opened.
_OPENABLE = ("http", "https", "mailto")


def ask_to_open(parent: QWidget, address: str) -> None:
    """Open a link in the browser if the person agrees, who sees where it leads."""
    url = QUrl(address)
    if url.scheme().lower() not in _OPENABLE:
        return
    question = "Open this link in your browser? The model wrote it, and nobody has checked it."
    # A long address has nowhere to break but after its slashes; who it belongs to stands first.
    shown = elided(url.toDisplayString(), 300).replace("/", "/\u200b")
    if confirm(parent, question, shown, "Open link"):
        QDesktopServices.openUrl(url)
