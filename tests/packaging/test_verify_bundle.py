"""The checker on bundles of real macOS wheels: a good one passes, and every fault is named, alone."""

from __future__ import annotations

import plistlib
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import bundle_facts
import pytest
import verify_bundle
from macho import is_macho, read_slices
from metallib import read_metallib

from app import __version__
from tests.packaging.macos_tree import assemble, copy_tree, fetch, link, replace, write_executable

pytestmark = pytest.mark.large

FRAMEWORKS = Path("Contents/Frameworks")
RESOURCES = Path("Contents/Resources")
COCOA = FRAMEWORKS / "PySide6/Qt/plugins/platforms/libqcocoa.dylib"
SHIBOKEN = FRAMEWORKS / "shiboken6/Shiboken.abi3.so"
EXECUTABLE = Path("Contents/MacOS", bundle_facts.EXECUTABLE)
MODEL = RESOURCES / bundle_facts.MODEL_FOLDER


@pytest.fixture(scope="module")
def good_app(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Path:
    """A bundle without faults. Read-only."""
    app = tmp_path_factory.mktemp("good") / f"{bundle_facts.NAME}.app"
    assemble(app, default_model_dir)
    return app


@pytest.fixture
def app(good_app: Path, tmp_path: Path) -> Path:
    """A copy to break: files are to be replaced, never written into."""
    return copy_tree(good_app, tmp_path)


def faults_of(app: Path) -> list[str]:
    return verify_bundle.find_faults(app, [bundle_facts.ROOT]).faults


def the_fault(app: Path) -> str:
    """The one and only fault."""
    faults = faults_of(app)
    assert len(faults) == 1, faults
    return faults[0]


def test_a_good_bundle_has_no_fault(good_app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_bundle.main([str(good_app)]) == 0
    summary = capsys.readouterr().out
    assert "no fault in " in summary
    # Said of other people's builds, and not held against the bundle.
    assert "Frameworks/mlx/lib/libmlx.dylib: /Users/runner/" in summary


def test_every_kind_of_code_is_recognised_in_it(good_app: Path) -> None:
    code = {path.relative_to(good_app) for path in good_app.rglob("*") if path.is_file() and is_macho(path)}
    assert {EXECUTABLE, COCOA, SHIBOKEN, FRAMEWORKS / "mlx/lib/libmlx.dylib"} <= code
    # A framework's library has no suffix.
    assert FRAMEWORKS / "PySide6/Qt/lib/QtCore.framework/Versions/A/QtCore" in code
    assert not {RESOURCES / bundle_facts.ICON, RESOURCES / "mlx/lib/mlx.metallib"} & code


def test_a_faulty_bundle_ends_with_1_and_a_sentence(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (app / COCOA).unlink()
    assert verify_bundle.main([str(app)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no window can open." in printed.err
    assert printed.err.strip().endswith("1 fault.")


@pytest.mark.parametrize(
    ("copy", "beside"),
    [
        (FRAMEWORKS / "mlx.metallib", FRAMEWORKS / "libmlx.dylib"),
        (FRAMEWORKS / "mlx/lib/mlx.metallib", FRAMEWORKS / "mlx/lib/libmlx.dylib"),
    ],
)
def test_metal_kernels_missing_beside_one_copy_of_mlx(app: Path, copy: Path, beside: Path) -> None:
    link(app / FRAMEWORKS / "mlx.metallib", app / RESOURCES / "mlx/lib/mlx.metallib")
    (app / copy).unlink()
    assert the_fault(app) == f"There is no mlx.metallib beside {beside}, where MLX looks for its kernels."


def test_a_copy_of_mlx_that_nobody_thought_of_needs_kernels_too(app: Path) -> None:
    shutil.copy(app / FRAMEWORKS / "mlx/lib/libmlx.dylib", app / FRAMEWORKS / "numpy/libmlx.dylib")
    assert "beside Contents/Frameworks/numpy/libmlx.dylib" in the_fault(app)


def test_copies_of_the_metal_kernels_must_be_the_same(app: Path) -> None:
    kernels = (app / RESOURCES / "mlx/lib/mlx.metallib").read_bytes()
    shutil.rmtree(app / MODEL)  # makes room: the bundle has a size limit
    (app / FRAMEWORKS / "mlx.metallib").unlink()
    (app / FRAMEWORKS / "mlx.metallib").write_bytes(kernels[:-1] + bytes([kernels[-1] ^ 1]))
    assert "The bundle has 2 different files mlx.metallib; all must be the same." in faults_of(app)


@pytest.mark.parametrize(("macos", "metal"), [("15.0", "3.2"), ("26.2", "4.0")])
def test_metal_kernels_of_a_wheel_for_a_newer_macos(app: Path, macos: str, metal: str) -> None:
    with zipfile.ZipFile(fetch("mlx-metal", macos=macos)) as wheel:
        replace(app / RESOURCES / "mlx/lib/mlx.metallib", wheel.read("mlx/lib/mlx.metallib"))
    fault = the_fault(app)
    assert f"mlx.metallib is built for macOS {macos} with Metal {metal}, and macOS 14.0 loads Metal 3.1" in fault


def test_cut_off_metal_kernels(app: Path) -> None:
    path = app / RESOURCES / "mlx/lib/mlx.metallib"
    replace(path, path.read_bytes()[:100_000])
    assert "mlx.metallib is damaged: it has 100,000 bytes instead of 146,876,416" in the_fault(app)


def test_the_wheel_for_macos_14_says_so(good_app: Path) -> None:
    kernels = read_metallib(good_app / RESOURCES / "mlx/lib/mlx.metallib")
    assert (kernels.macos, kernels.language) == ((14, 0), (3, 1))
    assert kernels.functions > 10_000


def test_mlx_of_a_wheel_for_a_newer_macos_imports_what_macos_14_has_not(app: Path) -> None:
    with zipfile.ZipFile(fetch("mlx-metal", macos="15.0")) as wheel:
        replace(app / FRAMEWORKS / "mlx/lib/libmlx.dylib", wheel.read("mlx/lib/libmlx.dylib"))
    fault = the_fault(app)
    assert fault.startswith("Contents/Frameworks/mlx/lib/libmlx.dylib says it needs macOS 15.0")
    assert "___cxa_init_primary_exception" in fault  # new in macOS 15's C++ runtime library


def test_libraries_that_only_claim_a_newer_macos_are_told_in_the_summary(good_app: Path) -> None:
    claims = verify_bundle.find_faults(good_app, []).claims
    assert [read_slices(good_app / claim.partition(" says")[0])[-1].minimum for claim in claims] == [(15, 0, 0)] * 8


def test_an_executable_for_a_newer_macos(app: Path) -> None:
    data = (app / EXECUTABLE).read_bytes()
    old = struct.pack("<4I", 0x32, 32, 1, 11 << 16)  # LC_BUILD_VERSION for macOS 11, as in the bootloader
    assert data.count(old) == 1
    replace(app / EXECUTABLE, data.replace(old, struct.pack("<4I", 0x32, 32, 1, 15 << 16)))
    assert the_fault(app) == (f"{EXECUTABLE} says it needs macOS 15.0, and the bundle promises macOS 14.0.")


def test_a_library_without_arm64_code(app: Path) -> None:
    data = (app / COCOA).read_bytes()
    cpu, _, offset, size, _ = struct.unpack_from(">5I", data, 8)
    assert cpu == 0x01000007  # the first part of the fat file is for Intel
    replace(app / COCOA, data[offset : offset + size])
    assert the_fault(app) == f"{COCOA} has no arm64 code, only x86_64."


def test_a_fat_library_whose_arm64_code_is_called_something_else(app: Path) -> None:
    data = (app / EXECUTABLE).read_bytes()
    replace(app / EXECUTABLE, data.replace(b"\xcf\xfa\xed\xfe\x0c\0\0\1", b"\xcf\xfa\xed\xfe\x07\0\0\1"))
    assert the_fault(app) == f"{EXECUTABLE} has no arm64 code, only x86_64 and x86_64."


def test_a_damaged_library(app: Path) -> None:
    replace(app / SHIBOKEN, (app / SHIBOKEN).read_bytes()[:200])
    assert the_fault(app).startswith(f"{SHIBOKEN} is a damaged Mach-O file (")


def test_a_library_that_is_loaded_from_elsewhere(app: Path) -> None:
    data = (app / SHIBOKEN).read_bytes()
    old, new = b"@rpath/libshiboken6.abi3.6.11.dylib", b"/opt/homebrew/lib/libshiboken6.dylib"
    # A path may be longer by the zeros that fill its load command.
    assert data.count(old + b"\0") >= 2
    replace(app / SHIBOKEN, data.replace(old + b"\0", new))
    assert the_fault(app) == (
        f"{SHIBOKEN} loads /opt/homebrew/lib/libshiboken6.dylib, which is neither in the bundle nor the system's."
    )


def test_a_library_that_is_not_where_it_is_looked_for(app: Path) -> None:
    (app / FRAMEWORKS / "PySide6/Qt/lib/QtDBus.framework/Versions/A/QtDBus").unlink()
    (app / FRAMEWORKS / "PySide6/Qt/lib/QtDBus.framework/Versions/Current").unlink()
    (app / FRAMEWORKS / "PySide6/Qt/lib/QtDBus.framework/QtDBus").unlink()
    (app / FRAMEWORKS / "QtDBus").unlink()
    (app / RESOURCES / "QtDBus").unlink()
    faults = faults_of(app)
    wanted = "loads @rpath/QtDBus.framework/Versions/A/QtDBus, which is not in the bundle where dyld looks for it."
    assert f"{FRAMEWORKS}/PySide6/Qt/lib/QtGui.framework/Versions/A/QtGui {wanted}" in faults
    assert all(fault.endswith(wanted) for fault in faults)


def test_qt_without_the_plugin_for_macos(app: Path) -> None:
    (app / COCOA).unlink()
    assert the_fault(app) == "Qt's plugin platforms/libqcocoa.dylib is missing, so no window can open."


def test_a_framework_that_codesign_would_refuse(app: Path) -> None:
    framework = FRAMEWORKS / "PySide6/Qt/lib/QtSvg.framework"
    (app / framework / "QtSvg").unlink()
    assert the_fault(app) == f"{framework} has no link QtSvg; codesign needs it."


def test_a_truncated_model(app: Path) -> None:
    weights = app / MODEL / "model.safetensors"
    size = weights.stat().st_size
    replace(weights, weights.read_bytes()[:-1])
    assert f"models/SmolLM2-135M-Instruct/model.safetensors is damaged: it has {size - 1:,} bytes" in the_fault(app)


def test_a_changed_tokenizer(app: Path) -> None:
    path = app / MODEL / "tokenizer.json"
    replace(path, path.read_bytes().replace(b"the", b"eht", 1))
    assert the_fault(app).endswith("tokenizer.json is damaged: its content has changed.")


def test_no_model(app: Path) -> None:
    shutil.rmtree(app / MODEL)
    assert the_fault(app) == f"The default model's folder {FRAMEWORKS / bundle_facts.MODEL_FOLDER} is missing."


def test_no_icon(app: Path) -> None:
    (app / RESOURCES / bundle_facts.ICON).unlink()
    assert the_fault(app) == f"The icon {RESOURCES / bundle_facts.ICON} is missing."


def test_a_bundle_of_another_version(app: Path) -> None:
    plist = bundle_facts.info_plist() | {"CFBundleShortVersionString": "9.9.9"}
    replace(app / "Contents" / "Info.plist", plistlib.dumps(plist))
    assert the_fault(app) == (
        f"Contents/Info.plist says '9.9.9' for CFBundleShortVersionString; it should be '{__version__}'."
    )


def test_a_dangling_link(app: Path) -> None:
    (app / FRAMEWORKS / "nothing.dylib").symlink_to("nowhere/nothing.dylib")
    assert the_fault(app) == f"The link {FRAMEWORKS}/nothing.dylib dangles: there is no nowhere/nothing.dylib."


def break_in_text(app: Path) -> str:
    (app / RESOURCES / "notes.txt").write_text(f"made in {bundle_facts.ROOT}/build/x\n")
    return f"{RESOURCES}/notes.txt"


def break_in_module(app: Path) -> str:
    write_executable(app, {"app.main": "x = 1", "app.store": f"x = '{bundle_facts.ROOT}/app/store.py'"})
    return f"{EXECUTABLE}!PYZ.pyz!app.store"


def break_in_zip(app: Path) -> str:
    path = app / RESOURCES / "base_library.zip"
    path.unlink()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as library:
        library.writestr("abc.pyc", f"{bundle_facts.ROOT}/abc.py " * 50)
    return f"{RESOURCES}/base_library.zip!abc.pyc"


@pytest.mark.parametrize("damage", [break_in_text, break_in_module, break_in_zip])
def test_a_path_of_the_machine_it_was_built_on(app: Path, damage: Callable[[Path], str]) -> None:
    where = damage(app)
    fault = the_fault(app)
    assert fault.startswith(f"{where} names the path {bundle_facts.ROOT}/")
    assert fault.endswith(" of the machine it was built on.")


def test_a_bundle_that_has_outgrown_its_bound(app: Path) -> None:
    with (app / RESOURCES / "more").open("wb") as file:
        file.truncate(100_000_000)
    assert "it should have fewer than 450,000,000." in the_fault(app)
