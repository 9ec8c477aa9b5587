"""The list of chats: a colour dot, the title, and a line that says how its memory is kept and what it does now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QFont, QFontMetrics, QKeyEvent, QMouseEvent, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QInputDialog,
    QListView,
    QMenu,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from app.ui.look.icons import pixmap
from app.ui.look.small import elided, plain_tip
from app.ui.look.theme import theme
from app.ui.session.controller import Controller
from app.ui.session.state import Chat
from app.ui.sidebar.row_changes import that_stay

ROW = 52
ChatRole = Qt.ItemDataRole.UserRole
_Index = QModelIndex | QPersistentModelIndex


class ChatListModel(QAbstractListModel):
    """The controller's chats, newest first.

    Its rows come, go and move one by one, never all at once: a view that hears of those only keeps its place, its
    selection and its hover.
    """

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._ids = self._order()

    def reload(self) -> set[int]:
        """Take over which chats there are and in which order. Returns those that stayed where they were."""
        return self.show_order(self._order())

    def show_order(self, order: Sequence[int]) -> set[int]:
        """Let the rows be these chats, in this order. Returns those that stayed where they were, between the others."""
        ids, stay, none = self._ids, that_stay(self._ids, order), QModelIndex()
        wanted = set(order)
        for row in reversed(range(len(ids))):
            if ids[row] not in wanted:
                self.beginRemoveRows(none, row, row)
                del ids[row]
                self.endRemoveRows()
        present = set(ids)
        above = -1
        for chat_id in order:
            # Right below the one that comes before it, which is in its place already.
            row = above + 1
            if chat_id not in present:
                self.beginInsertRows(none, row, row)
                ids.insert(row, chat_id)
                self.endInsertRows()
            elif chat_id not in stay:
                old = ids.index(chat_id)
                if old != row:
                    self.beginMoveRows(none, old, old, none, row)
                    ids.insert(row, chat_id)
                    del ids[old + 1 if old > row else old]
                    self.endMoveRows()
                    row -= old < row
            else:
                row = ids.index(chat_id, row)
            above = row
        return stay

    def _order(self) -> list[int]:
        return sorted(self._controller.chats, reverse=True)

    def row_of(self, chat_id: int | None) -> int:
        return self._ids.index(chat_id) if chat_id in self._ids else -1

    def id_at(self, row: int) -> int | None:
        return self._ids[row] if 0 <= row < len(self._ids) else None

    def touched(self, chat_id: int) -> None:
        if (row := self.row_of(chat_id)) >= 0:
            self.dataChanged.emit(self.index(row), self.index(row))

    def rowCount(self, parent: _Index | None = None) -> int:
        return len(self._ids)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        chat = self._controller.chats.get(self._ids[index.row()])
        if chat is None:
            return None
        if role == ChatRole:
            return chat
        if role == Qt.ItemDataRole.DisplayRole:
            return chat.title
        says = "\n".join(part for part in (chat.title, second_line(chat)) if part)
        if role == Qt.ItemDataRole.AccessibleDescriptionRole:
            return says
        return plain_tip(says) if role == Qt.ItemDataRole.ToolTipRole else None


def second_line(chat: Chat) -> str:
    return " · ".join(part for part in (chat.choice.label, chat.state_words) if part)


class ChatDelegate(QStyledItemDelegate):
    """Paints a row. The x is drawn, and works, where the pointer is."""

    def __init__(self, view: ChatList) -> None:
        super().__init__(view)
        self._view = view

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        return QSize(100, ROW + 2)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        chat = index.data(ChatRole)
        if not isinstance(chat, Chat):
            return
        tokens = theme().tokens
        row = QRect(option.rect).adjusted(0, 1, 0, -1)
        selected = bool(option.state & QStyle.StateFlag.State_Selected)
        hovered = bool(option.state & QStyle.StateFlag.State_MouseOver)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        if selected or hovered:
            painter.setBrush(QColor(tokens.selected if selected else tokens.hover))
            painter.drawRoundedRect(row, 8, 8)
        if option.state & QStyle.StateFlag.State_HasFocus and self._view.shows_focus:
            pen = painter.pen()
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QColor(tokens.accent))
            painter.drawRoundedRect(row.adjusted(1, 1, -1, -1), 8, 8)
            painter.setPen(pen)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().chat_colour(chat.colour))
        painter.drawEllipse(QRect(row.left() + 12, row.top() + 13, 8, 8))
        left, right = row.left() + 30, row.right() - (32 if hovered else 10)
        font = QFont(self._view.font())
        font.setWeight(QFont.Weight.Medium)
        _line(painter, font, tokens.text, QRect(left, row.top() + 7, right - left, 20), chat.title)
        font.setWeight(QFont.Weight.Normal)
        font.setPixelSize(theme().base - 1)
        below = QRect(left, row.top() + 27, right - left, 18)
        _line(painter, font, tokens.text2 if selected else tokens.text3, below, second_line(chat))
        if hovered:
            cross = close_rect(QRect(option.rect))
            if cross.contains(self._view.pointer):
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(QColor(tokens.pressed))
                painter.drawRoundedRect(cross, 6, 6)
            painter.drawPixmap(cross.topLeft() + QPoint(5, 5), pixmap("close", tokens.text2, 14))
        painter.restore()


def _line(painter: QPainter, font: QFont, colour: str, where: QRect, text: str) -> None:
    painter.setFont(font)
    painter.setPen(QColor(colour))
    shown = elided(QFontMetrics(font), text, where.width())
    painter.drawText(where, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, shown)


def close_rect(row: QRect) -> QRect:
    """Where a row's x is."""
    return QRect(row.right() - 29, row.center().y() - 11, 24, 24)


class ChatList(QListView):
    chosen = Signal(int)
    close_asked = Signal(int)
    settings_asked = Signal(int)

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.pointer = QPoint(-1, -1)
        self.shows_focus = False
        self.setAccessibleName("Chats")
        self.setMouseTracking(True)
        self.setUniformItemSizes(True)  # or each of a thousand rows is asked for its size
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self._model = ChatListModel(controller)
        self.setModel(self._model)
        self.setItemDelegate(ChatDelegate(self))
        self.selectionModel().currentChanged.connect(self._current_changed)
        self._quiet = False
        controller.chats_changed.connect(self._reload)
        controller.chat_changed.connect(self._model.touched)
        theme().changed.connect(self.viewport().update)

    def show_current(self, chat_id: int | None) -> None:
        """Mark the chat the window shows, without asking for it again."""
        self._quiet = True
        row = self._model.row_of(chat_id)
        if row < 0:
            self.selectionModel().clear()
        else:
            self.setCurrentIndex(self._model.index(row))
        self._quiet = False

    def _reload(self) -> None:
        """Take over what came, went or moved. What one looks at stays where it is, and the selection with its chat."""
        current, bar = self._model.id_at(self.currentIndex().row()), self.verticalScrollBar()
        seen = self._visible()
        self._quiet = True
        stayed = self._model.reload()
        self._quiet = False
        self.executeDelayedItemsLayout()
        held = next((chat_id for chat_id in seen if chat_id in stayed), None)
        # At the very top one looks at what is newest, whichever chat that is.
        if held is not None and bar.value() > 0:
            bar.setValue(bar.value() + self.visualRect(self._index_of(held)).top() - seen[held])
        self.show_current(current)

    def _visible(self) -> dict[int, int]:
        """The chats one sees, from top to bottom, each with where its row begins."""
        seen: dict[int, int] = {}
        row = max(self.indexAt(QPoint(self.viewport().width() // 2, 0)).row(), 0)
        while (chat_id := self._model.id_at(row)) is not None:
            top = self.visualRect(self._model.index(row)).top()
            if top >= self.viewport().height():
                break
            seen[chat_id] = top
            row += 1
        return seen

    def _index_of(self, chat_id: int) -> QModelIndex:
        return self._model.index(self._model.row_of(chat_id))

    def _current_changed(self, current: QModelIndex, _: QModelIndex) -> None:
        chat_id = self._model.id_at(current.row())
        if chat_id is not None and not self._quiet:
            self.chosen.emit(chat_id)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        self.shows_focus = True
        chat_id = self._model.id_at(self.currentIndex().row())
        if event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace) and chat_id is not None:
            self.close_asked.emit(chat_id)
            return
        super().keyPressEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.pointer = event.position().toPoint()
        self.viewport().update()
        super().mouseMoveEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.shows_focus = False
        where = event.position().toPoint()
        index = self.indexAt(where)
        chat_id = self._model.id_at(index.row())
        if chat_id is None:
            return
        if event.button() == Qt.MouseButton.RightButton:
            menu = self.menu_of(chat_id)
            menu.exec(event.globalPosition().toPoint())
            menu.deleteLater()
        elif close_rect(self.visualRect(index)).contains(where):
            self.close_asked.emit(chat_id)
        else:
            super().mousePressEvent(event)
            self.chosen.emit(chat_id)

    def leaveEvent(self, event: QEvent) -> None:
        self.pointer = QPoint(-1, -1)
        super().leaveEvent(event)

    def menu_of(self, chat_id: int) -> QMenu:
        """What can be done with a chat."""
        chat, menu = self._controller.chats[chat_id], QMenu(self)
        menu.addAction("Rename…", lambda: self._rename(chat_id))
        menu.addAction("Answer settings…", lambda: self.settings_asked.emit(chat_id))
        stop = menu.addAction("Stop answering", lambda: self._controller.stop(chat_id))
        stop.setEnabled(chat.answering)
        free = menu.addAction("Free its memory", lambda: self._controller.free_memory(chat_id))
        free.setEnabled(chat.can_free)
        menu.addSeparator()
        menu.addAction("Delete chat", lambda: self.close_asked.emit(chat_id))
        return menu

    def _rename(self, chat_id: int) -> None:
        title, ok = QInputDialog.getText(
            self, "Rename chat", "Title of the chat:", text=self._controller.chats[chat_id].title
        )
        if ok:
            self._controller.rename_chat(chat_id, title)
