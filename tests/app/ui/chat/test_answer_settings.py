"""How one chat is answered: the dialog, what it refuses, what is kept, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.engine.messages import ModelReady, Sampling, Send
from app.engine.values import SAMPLING_LIMITS
from app.store.store import Store
from app.ui.chat.answer_settings import NUMBERS, AnswerSettings
from app.ui.session.controller import SAMPLING, Controller
from app.ui.session.settings import ChatSettings
from app.ui.shell.main_window import MainWindow
from tests.app.ui.conftest import INFO, ScriptedEngine, ended, say
from tests.app.ui.session.test_controller import asked
from tests.app.ui.shell.test_window import press, visible_words

OWN = Sampling(0.7, 0.8, 40, 0.05, 1.1, seed=7, max_tokens=99, stop=("\n- ", "End"))


@pytest.fixture
def dialog(window: MainWindow, qtbot: QtBot) -> AnswerSettings:
    made = AnswerSettings(ChatSettings(), SAMPLING, 8192, window)
    qtbot.addWidget(made)
    made.show()
    return made


def fill(dialog: AnswerSettings, **texts: str) -> None:
    for name, typed in texts.items():
        dialog.fields[name].edit.setText(typed)


def test_it_shows_what_is_in_use(dialog: AnswerSettings) -> None:
    shown = {name: field.edit.text() for name, field in dialog.fields.items()}
    assert shown == {
        "temperature": "0.2",
        "top_p": "0.9",
        "top_k": "0",
        "min_p": "0",
        "repetition_penalty": "1",
        "max_tokens": "1024",
        "seed": "",
        "context_limit": "",
    }
    assert dialog.fields["context_limit"].edit.placeholderText() == "8,192"
    press(dialog, "Save")
    assert dialog.chosen == ChatSettings(), "nothing was chosen, so the application's own goes on to count"


def test_what_is_typed_is_what_is_chosen(dialog: AnswerSettings) -> None:
    fill(dialog, temperature="0,7", top_p=".8", top_k="1,000", min_p="0.05", repetition_penalty="1.1", seed=" 7 ")
    fill(dialog, max_tokens="99", context_limit="4,096")
    dialog.stop.setPlainText("User:\n\n  \nEnd ")
    dialog.drops.setChecked(True)
    press(dialog, "Save")
    assert dialog.result() == AnswerSettings.DialogCode.Accepted
    sampling = Sampling(0.7, 0.8, 1000, 0.05, 1.1, seed=7, max_tokens=99, stop=("User:", "End "))
    assert dialog.chosen == ChatSettings(sampling, True, 4096)


@pytest.mark.parametrize(
    ("name", "typed", "says"),
    [
        ("temperature", "11", "Write a number from 0 to 10."),
        ("temperature", "nan", "Write a number from 0 to 10."),
        ("temperature", "", "Write a number from 0 to 10."),
        ("top_p", "0", "Write a number from 0.01 to 1."),
        ("top_k", "1.5", "Write a whole number from 0 to 1,000,000."),
        ("min_p", "warm", "Write a number from 0 to 1."),
        ("repetition_penalty", "1e99", "Write a number from 0.1 to 10."),
        ("max_tokens", "0", "Write a whole number from 1 to 1,000,000."),
        ("seed", "-1", "Write a whole number of at least 0, or nothing for a new one each time."),
        (
            "context_limit",
            "10",
            "Write a whole number from 64 to 10,000,000, or nothing for as many as the model reads.",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(dialog: AnswerSettings, name: str, typed: str, says: str) -> None:
    fill(dialog, **{name: typed})
    assert says in visible_words(dialog)
    assert dialog.fields[name].edit.accessibleDescription() == says
    press(dialog, "Save")
    assert dialog.isVisible()
    assert dialog.fields[name].edit.hasFocus()
    fill(dialog, **{name: "64" if name == "context_limit" else "1"})
    assert says not in visible_words(dialog)
    press(dialog, "Save")
    assert not dialog.isVisible()


def test_every_limit_of_the_engine_can_be_typed(dialog: AnswerSettings) -> None:
    for name in NUMBERS:
        for end in SAMPLING_LIMITS[name][:2]:
            fill(dialog, **{name: f"{end}"})
            assert dialog.fields[name].check()


def test_defaults_come_back(window: MainWindow, qtbot: QtBot) -> None:
    own = AnswerSettings(ChatSettings(OWN, True, 400), SAMPLING, 8192, window)
    qtbot.addWidget(own)
    own.show()
    assert own.fields["temperature"].edit.text() == "0.7"
    assert own.fields["seed"].edit.text() == "7"
    press(own, "Reset to defaults")
    assert own.isVisible(), "it can still be cancelled"
    press(own, "Save")
    assert own.chosen == ChatSettings()


def test_cancelling_changes_nothing(window: MainWindow, qtbot: QtBot) -> None:
    own = AnswerSettings(ChatSettings(OWN), SAMPLING, None, window)
    qtbot.addWidget(own)
    own.show()
    fill(own, temperature="2")
    press(own, "Cancel")
    assert own.chosen == ChatSettings(OWN)


def test_everything_in_it_has_a_name_and_a_place_in_the_order(dialog: AnswerSettings) -> None:
    order: list[QWidget] = []
    first = dialog.fields["temperature"].edit
    widget = first.nextInFocusChain()
    while widget is not None and widget is not first:
        order.append(widget)
        widget = widget.nextInFocusChain()
    places = [order.index(w) for w in (dialog.fields["seed"].edit, dialog.stop, dialog.fields["context_limit"].edit)]
    places += [order.index(w) for w in (dialog.drops, dialog.apply)]
    assert places == sorted(places)
    for field in dialog.fields.values():
        assert field.edit.accessibleName()
    assert dialog.stop.accessibleName()


# ---------------------------------------------------------------- kept and sent
def test_a_chat_is_answered_as_chosen_for_it_also_after_a_restart(
    controller: Controller, engine: ScriptedEngine, store: Store
) -> None:
    own, other = asked(controller), asked(controller)
    say(controller, ended(own), ended(other))
    controller.set_settings(own, ChatSettings(OWN, True, 4096))
    controller.send(own, "More")
    controller.send(other, "More")
    mine, others = engine.told(Send)[-2:]
    assert isinstance(mine, Send)
    assert isinstance(others, Send)
    assert (mine.sampling, mine.drop_oldest, mine.context_limit) == (OWN, True, 4096)
    assert (others.sampling, others.drop_oldest, others.context_limit) == (SAMPLING, False, None)
    again = Controller(ScriptedEngine(), store)
    assert again.chats[own].settings == ChatSettings(OWN, True, 4096)
    assert again.chats[other].settings == ChatSettings()


@pytest.mark.parametrize(
    "kept",
    [
        {"sampling": {"temperature": "hot"}},
        {"sampling": {"temperature": 99}},
        {"sampling": {"stop": 5}},
        {"sampling": {"stop": [""]}},
        {"sampling": [1]},
        {"drop_oldest": "yes", "context_limit": "many"},
        {"context_limit": -1},
        {"context_limit": True},
        {"from_a_newer_version": 1},
    ],
)
def test_settings_that_cannot_be_used_are_as_if_not_chosen(kept: dict[str, Any]) -> None:
    assert ChatSettings.parse(kept) == ChatSettings()


def test_settings_of_another_version_are_used_as_far_as_they_are_known() -> None:
    kept = {"sampling": {"temperature": 0.5, "mirostat": 2}, "context_limit": 100, "other": []}
    assert ChatSettings.parse(kept) == ChatSettings(Sampling(temperature=0.5), False, 100)


def answer_with(temperature: str) -> None:
    """Let the dialog that comes next be filled in and saved."""

    def act() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, AnswerSettings)
        fill(dialog, temperature=temperature)
        press(dialog, "Save")

    QTimer.singleShot(0, act)


def test_it_is_opened_from_the_header_for_the_chat_that_is_shown(window: MainWindow) -> None:
    say(window.controller, ModelReady(INFO))
    first, second = window.controller.new_chat(), asked(window.controller)
    window.show_chat(second)
    answer_with("1.5")
    window.header.answers.click()
    own = window.controller.chats[second].settings.sampling
    assert own is not None
    assert own.temperature == 1.5
    assert window.controller.chats[first].settings == ChatSettings()
    window.show_compare()
    assert not window.header.answers.isVisible()


def test_it_is_opened_from_a_chats_menu(window: MainWindow) -> None:
    first = window.controller.new_chat()
    window.show_chat(window.controller.new_chat())
    menu = window.sidebar.chats.menu_of(first)
    answer_with("2")
    next(action for action in menu.actions() if action.text() == "Answer settings…").trigger()
    assert window.controller.chats[first].settings.sampling is not None
    assert window.chat_view.chat_id != first


def test_it_can_come_before_the_first_question(window: MainWindow, engine: ScriptedEngine) -> None:
    say(window.controller, ModelReady(INFO))
    answer_with("0.2")
    window.header.answers.click()
    assert not window.controller.chats, "nothing was changed, so no chat is made"
    answer_with("3")
    window.header.answers.click()
    (chat_id,) = window.controller.chats
    assert window.chat_view.chat_id == chat_id
    window.controller.send(chat_id, "Hello")
    sent = engine.told(Send)[-1]
    assert isinstance(sent, Send)
    assert sent.sampling.temperature == 3
