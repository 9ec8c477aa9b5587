"""The words of a message: what can be selected and copied, what is laid out, and what a click on a link does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QColor, QDesktopServices, QGuiApplication, QMouseEvent, QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QScrollBar, QWidget
from pytestqt.qtbot import QtBot

from app.ui.chat.body import Body
from app.ui.chat.copy_button import CopyButton
from app.ui.look import links
from app.ui.look.blocks import CodeSegment
from app.ui.look.theme import theme

MIXED = """First words with **bold** ones.

```python
x = 1
y = 2
```

Last words, and [a link](https://example.org/page)."""


@pytest.fixture
def make(qtbot: QtBot) -> Iterator[Callable[[bool], Body]]:
    """A message's words, in a window of which they may be a large multiple."""
    theme().set_name("light")
    windows: list[QWidget] = []

    def made(markdown: bool) -> Body:
        window = QWidget()
        windows.append(window)
        window.resize(600, 800)
        body = Body("Answer", markdown)
        body.setParent(window)
        window.show()
        return body

    yield made
    for window in windows:
        window.close()


@pytest.fixture
def answer(make: Callable[[bool], Body]) -> Body:
    return make(True)


def show(body: Body, text: str, ended: bool = True, width: int = 600, bottom: int = 800) -> int:
    body.show_text(text, ended)
    while body.is_reading:
        QApplication.processEvents()
    return body.lay_out(width, 0, bottom)


def point(body: Body, piece: int, x: int, y: int) -> QPoint:
    """A point of a piece, x and y pixels from the beginning of its words."""
    top = body.y_of((piece + 1, 0)) - body.pieces[piece].height
    return QPoint(x, top + y)


def drag(body: Body, start: QPoint, end: QPoint) -> None:
    QTest.mousePress(body, Qt.MouseButton.LeftButton, pos=start)
    for at in ((start + end) / 2, end):
        where = body.mapToGlobal(at)
        moved = QMouseEvent(
            QEvent.Type.MouseMove,
            QPointF(at),
            QPointF(where),
            Qt.MouseButton.NoButton,
            Qt.MouseButton.LeftButton,
            Qt.KeyboardModifier.NoModifier,
        )
        QApplication.sendEvent(body, moved)
    QTest.mouseRelease(body, Qt.MouseButton.LeftButton, pos=end)


def test_words_and_code_are_selected_in_one_go(answer: Body) -> None:
    show(answer, MIXED)
    drag(answer, point(answer, 0, 0, 5), point(answer, 2, 590, 5))
    assert answer.selected_text == ("First words with bold ones.\n\nx = 1\ny = 2\n\nLast words, and a link.")
    QTest.keyClick(answer, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == answer.selected_text


def test_a_selection_may_begin_below_its_end(answer: Body) -> None:
    show(answer, MIXED)
    drag(answer, point(answer, 1, 590, 60), point(answer, 0, 0, 5))
    assert answer.selected_text == "First words with bold ones.\n\nx = 1\ny = 2"


def test_a_double_click_selects_a_word_and_a_third_one_its_paragraph(answer: Body) -> None:
    show(answer, MIXED)
    at = point(answer, 0, 12, 8)
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, pos=at)
    QTest.mouseDClick(answer, Qt.MouseButton.LeftButton, pos=at)
    assert answer.selected_text == "First"
    QTest.mousePress(answer, Qt.MouseButton.LeftButton, pos=at)
    assert answer.selected_text == "First words with bold ones."


def test_a_click_with_shift_goes_on_with_the_selection(answer: Body) -> None:
    show(answer, MIXED)
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, pos=point(answer, 0, 0, 8))
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, point(answer, 1, 590, 42))
    assert answer.selected_text == "First words with bold ones.\n\nx = 1"


def test_a_click_elsewhere_ends_the_selection(answer: Body) -> None:
    show(answer, MIXED)
    answer.selectAll()
    assert answer.selected_text
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, pos=point(answer, 0, 5, 5))
    assert not answer.has_selection
    assert answer.selected_text == ""


def test_everything_can_be_selected_though_little_of_it_is_laid_out(answer: Body) -> None:
    text = "\n\n".join(f"Paragraph {i} with *some* words." for i in range(2_000))
    show(answer, text)
    assert answer.n_laid_out < 60
    QTest.keyClick(answer, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(answer, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == text.replace("*", "")
    assert answer.n_laid_out < 60


def test_what_is_selected_is_painted_so(answer: Body) -> None:
    show(answer, MIXED)
    accent = QColor(theme().tokens.accent)

    def marked() -> int:
        picture = answer.grab().toImage()
        return sum(
            picture.pixelColor(x, y) == accent for x in range(0, picture.width(), 3) for y in range(picture.height())
        )

    assert marked() == 0
    answer.selectAll()
    assert marked() > 100


def test_the_copy_button_takes_the_whole_program_without_the_fences(answer: Body) -> None:
    code = "\n".join(f"line {i}" for i in range(1_000))
    show(answer, f"Here:\n\n```python\n{code}\n```\n\nDone")
    assert len([p for p in answer.pieces if isinstance(p.segment, CodeSegment)]) > 5
    (button,) = [b for b in answer.findChildren(CopyButton) if not b.isHidden()]
    button.click()
    assert QGuiApplication.clipboard().text() == code


def test_wide_code_scrolls_sideways_by_its_bar_and_stays_there_while_it_grows(answer: Body) -> None:
    wide = "x" * 300
    show(answer, f"```\n{wide}", ended=False)
    (bar,) = [b for b in answer.findChildren(QScrollBar) if not b.isHidden()]
    assert bar.maximum() > 0
    bar.setValue(80)
    assert answer.pieces[0].shift == 80
    show(answer, f"```\n{wide}\nmore", ended=False)
    assert answer.pieces[0].shift == 80


def test_code_as_wide_as_the_column_has_no_bar(answer: Body) -> None:
    show(answer, "```\nshort\n```")
    assert not [b for b in answer.findChildren(QScrollBar) if not b.isHidden()]


@pytest.mark.parametrize(
    ("address", "asked"), [("https://example.org/page", True), ("mailto:a@example.org", True), ("ftp://x.org/a", False)]
)
def test_a_link_is_opened_only_after_asking(
    answer: Body, monkeypatch: pytest.MonkeyPatch, address: str, asked: bool
) -> None:
    opened: list[QUrl] = []
    questions: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", opened.append)

    def agree(parent: object, question: str, shown: str, yes: str) -> bool:
        questions.append(shown)
        return True

    monkeypatch.setattr(links, "confirm", agree)
    show(answer, f"[a link]({address})")
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, pos=point(answer, 0, 10, 8))
    assert [url.toString() for url in opened] == ([address] if asked else [])
    assert len(questions) == asked


def test_a_drag_that_ends_on_a_link_opens_nothing(answer: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(links, "confirm", lambda *_: True)
    monkeypatch.setattr(QDesktopServices, "openUrl", opened.append)
    show(answer, "[a long link of several words](https://example.org)")
    drag(answer, point(answer, 0, 5, 8), point(answer, 0, 90, 8))
    assert answer.has_selection
    assert not opened


@pytest.mark.parametrize("url", ["http://example.com/a.png", "file:///etc/hostname", "data:image/png;base64,AAAA"])
def test_the_words_load_nothing_even_if_html_asked_for_it(answer: Body, url: str) -> None:
    show(answer, "Words")
    document = answer.pieces[0].document
    document.setHtml(f'<p>text <img src="{url}"></p>')
    for kind in (QTextDocument.ResourceType.ImageResource, QTextDocument.ResourceType.StyleSheetResource):
        assert document.loadResource(kind.value, QUrl(url)) is None


def test_the_screen_reader_is_given_the_words(answer: Body) -> None:
    show(answer, MIXED)
    assert answer.accessibleName() == f"Answer: {MIXED}"


def test_only_the_last_block_is_laid_out_again_while_an_answer_grows(answer: Body) -> None:
    text = "\n\n".join(f"Paragraph {i}, which is finished." for i in range(20)) + "\n\nAnd this one"
    show(answer, text, ended=False)
    before = [piece.document for piece in answer.pieces]
    for more in (" goes", " on", " and on."):
        text += more
        show(answer, text, ended=False)
        now = [piece.document for piece in answer.pieces]
        assert [a is b for a, b in zip(before, now, strict=True)] == [True] * 20 + [False]
        before = now


def test_an_answer_that_goes_on_after_its_end_is_not_blank_meanwhile(answer: Body) -> None:
    text = "\n\n".join(f"Paragraph {i} with *some* words." for i in range(3_000)) + "\n\nIt was cut"
    height = show(answer, text)
    before = [piece.document for piece in answer.pieces if piece.is_laid_out]
    answer.show_text(f"{text} off here, and more", ended=False)
    turns = 0
    while answer.is_reading:
        turns += 1
        assert answer.lay_out(600, 0, 800) >= height
        assert len(answer.pieces) == 3_001
        QApplication.processEvents()
    assert turns > 1, "it is long enough for the window to be looked after in between"
    assert answer.words.endswith("It was cut off here, and more")
    assert [piece.document for piece in answer.pieces if piece.is_laid_out] == before


def test_a_widget_that_is_put_away_reads_no_more(answer: Body) -> None:
    answer.show_text("word " * 200_000, ended=True)
    n = len(answer.pieces)
    answer.put_away()
    QTest.qWait(50)
    assert len(answer.pieces) <= n
    show(answer, "Other words")
    assert answer.words == "Other words"


def test_colours_follow_the_theme(answer: Body) -> None:
    show(answer, MIXED)
    light = answer.grab().toImage()
    theme().set_name("dark")
    try:
        answer.lay_out(600, 0, 800)
        dark = answer.grab().toImage()
    finally:
        theme().set_name("light")
    answer.lay_out(600, 0, 800)
    assert dark != light
    assert answer.grab().toImage() == light


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "a line of words\n" * 10_000,
        "x" * 200_000,
        "*" * 60_000,
        "`" * 50_000,
        ">" * 500 + " deep",
        "- item\n" * 4_000,
        "```\n" + "code\n" * 20_000,
        "👩‍👩‍👧 " * 30_000,
    ],
    ids=["1 MB", "10,000 lines", "one line", "asterisks", "backticks", "quotes", "list", "code", "emoji"],
)
@pytest.mark.parametrize("markdown", [True, False], ids=["answer", "question"])
def test_of_a_huge_message_only_what_is_seen_is_laid_out(
    make: Callable[[bool], Body], text: str, markdown: bool
) -> None:
    body = make(markdown)
    height = show(body, text)
    assert body.n_laid_out <= 60
    assert max(len(piece.document.toPlainText()) for piece in body.pieces if piece.is_laid_out) <= 20_000
    middle = height // 2
    body.lay_out(600, middle, middle + 800)
    assert body.is_laid_out(middle, middle + 800)
    assert body.n_laid_out <= 120
    body.selectAll()
    if not markdown:
        assert body.selected_text.removesuffix("\n") == text.removesuffix("\n")


def test_a_paragraph_right_below_what_can_be_seen_need_not_be_laid_out(answer: Body) -> None:
    text = "\n\n".join(["A paragraph."] * 20)
    show(answer, text)
    bottom = answer.y_of((5, 0))
    theme().changed.emit()
    answer.lay_out(600, 0, bottom)
    assert answer.n_laid_out == 5
    assert answer.is_laid_out(0, bottom)
    assert not answer.is_laid_out(0, bottom + 1)


def test_a_selection_that_goes_far_beyond_what_is_seen_leaves_no_gap_there(answer: Body) -> None:
    show(answer, "\n\n".join(["words of a paragraph " * 15] * 400))
    far = answer.y_of((200, 0))
    QTest.mousePress(answer, Qt.MouseButton.LeftButton, pos=QPoint(0, 5))
    answer.select_to(QPoint(10, far + 5))
    answer.lay_out(600, far - 400, far + 400)
    heights = [answer.y_of((i + 1, 0)) - answer.y_of((i, 0)) - answer.pieces[i].height for i in range(198, 203)]
    assert heights == [12] * 5


def test_what_was_copied_of_a_paragraph_far_away_does_not_spoil_its_lines(answer: Body) -> None:
    text = "\n\n".join(["words of a paragraph " * 15] * 400)
    height = show(answer, text)
    lines = answer.pieces[0].document.size().height()
    QTest.mouseClick(answer, Qt.MouseButton.LeftButton, pos=QPoint(20, 5))
    for top in range(0, height - 700, 700):
        answer.lay_out(600, top, top + 700)
    assert not answer.pieces[0].is_laid_out
    QTest.mouseClick(
        answer, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, QPoint(10, answer.height() - 5)
    )
    assert answer.selected_text.startswith("rds of a")
    answer.lay_out(600, 0, 800)
    assert answer.pieces[0].document.size().height() == lines
    assert answer.pieces[0].document.textWidth() == 600


def shown_bars(body: Body) -> list[QScrollBar]:
    return [bar for bar in body.findChildren(QScrollBar) if not bar.isHidden()]


def test_code_that_was_scrolled_sideways_begins_at_its_left_again_where_it_has_room(answer: Body) -> None:
    show(answer, f"```\n{'x ' * 60}\nshort\n```", width=300)
    (bar,) = shown_bars(answer)
    bar.setValue(80)
    answer.lay_out(2_000, 0, 800)
    assert not shown_bars(answer)
    assert answer.pieces[0].shift == 0
    answer.lay_out(300, 0, 800)
    (bar,) = shown_bars(answer)
    assert bar.value() == 0


def test_wide_code_keeps_its_bar_where_the_wide_line_is_far_above(answer: Body) -> None:
    show(answer, f"```\n{'x' * 200}\n" + "y\n" * 20_000 + "```", width=300)
    top = 0
    while top < answer.height():
        answer.lay_out(300, top, top + 2_000)
        top += 2_000
    assert not answer.pieces[0].is_laid_out
    (bar,) = shown_bars(answer)
    assert bar.maximum() > 0
