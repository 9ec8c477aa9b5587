"""Words of a chat that look like HTML, or that Qt counts otherwise: shown as they are, and nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage, QTextCursor, QTextDocument
from PySide6.QtGui import Qt as GuiQt
from PySide6.QtWidgets import QApplication, QLabel, QToolTip
from pytestqt.qtbot import QtBot

from app.ui.look.blocks import TextSegment, segments
from app.ui.look.document_view import DocumentView
from app.ui.look.small import ElidedLabel, plain_tip
from app.ui.look.theme import theme
from app.ui.shell.main_window import MainWindow
from app.ui.sidebar.chat_list import ChatListModel


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "private.png"
    image = QImage(300, 300, QImage.Format.Format_RGB32)
    image.fill(QColor("red"))
    assert image.save(str(path))
    return f'<img src="{path}">'


def said(tip: str) -> str:
    """What a tooltip shows, read as Qt reads it."""
    document = QTextDocument()
    document.setHtml(tip) if tip.startswith("<qt>") else document.setPlainText(tip)
    return document.toPlainText()


def shown_tip(window: MainWindow, tip: str) -> QLabel:
    QToolTip.showText(window.mapToGlobal(QPoint(100, 100)), tip, window)
    QApplication.processEvents()
    return next(w for w in QApplication.topLevelWidgets() if isinstance(w, QLabel) and w.inherits("QTipLabel"))


def test_pointing_at_a_chat_titled_like_a_picture_loads_no_file(window: MainWindow, picture: str) -> None:
    chat_id = window.controller.new_chat()
    window.controller.rename_chat(chat_id, picture)
    model = ChatListModel(window.controller)
    index = model.index(0)
    tip = index.data(Qt.ItemDataRole.ToolTipRole)
    assert said(tip).startswith(picture)
    assert picture in index.data(Qt.ItemDataRole.AccessibleDescriptionRole)
    assert shown_tip(window, picture).height() > 250, "Qt would load it"
    QToolTip.hideText()
    assert shown_tip(window, tip).height() < 150
    QToolTip.hideText()


def test_the_title_above_the_chat_is_plain_in_its_tooltip_too(qtbot: QtBot, picture: str) -> None:
    title = ElidedLabel(picture)
    qtbot.addWidget(title)
    title.resize(60, 20)
    title.show()
    assert said(title.toolTip()) == picture
    assert picture not in title.toolTip()
    assert title.accessibleDescription() == picture


@pytest.mark.parametrize("text", ["", "Why?", "a < b & c > d", "x\n<b>bold</b>", "&lt;b&gt;", "<b>one</b>\ntwo"])
def test_a_tooltip_says_what_it_was_given(text: str) -> None:
    assert said(plain_tip(text)) == text
    assert not GuiQt.mightBeRichText(text) or plain_tip(text).startswith("<qt>")


def test_a_link_in_an_answer_brings_no_tooltip_of_its_own(picture: str) -> None:
    (segment,) = segments(f"[look](https://example.org/?a=1&b=2 '{picture}')")
    assert isinstance(segment, TextSegment)
    assert segment.html == '<p><a href="https://example.org/?a=1&amp;b=2">look</a></p>'


def marked(view: DocumentView) -> str:
    """The text on the ground that says "differs"."""
    found = ""
    for at, letter in enumerate(view.toPlainText().encode("utf-16-le").decode("utf-16-le")):
        cursor = QTextCursor(view.document())
        cursor.setPosition(len(view.toPlainText()[: at + 1].encode("utf-16-le")) // 2)
        if cursor.charFormat().background().color() == QColor(theme().tokens.differs_bg):
            found += letter
    return found


@pytest.mark.parametrize("before", ["", "Plain ", "🌈 ", "👩‍🚀🌈🌈 and ", "é\n🌈\n"])
def test_the_highlight_of_a_difference_is_not_shifted_by_emoji(qtbot: QtBot, before: str) -> None:
    view = DocumentView("Answer")
    qtbot.addWidget(view)
    view.show_plain(f"{before}glass 🌈.", len(before))
    assert marked(view).replace("\n", "") == "glass 🌈."
