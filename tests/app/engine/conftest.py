"""Engines with a tiny random model and with the real default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.messages import ModelReady
from tests.app.engine.driver import Driver


@pytest.fixture
def tiny(tiny_model_dir: Path) -> Iterator[Driver]:
    driver = Driver()
    assert isinstance(driver.load(tiny_model_dir), ModelReady)
    yield driver
    driver.end()


@pytest.fixture(scope="module")
def real(default_model_dir: Path) -> Iterator[Driver]:
    driver = Driver()
    assert isinstance(driver.load(default_model_dir), ModelReady)
    yield driver
    driver.end()
