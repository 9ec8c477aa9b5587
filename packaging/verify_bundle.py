"""Check a built macOS bundle, on any system: `python packaging/verify_bundle.py "dist/VeloxQuant Chat.app"`.

Exits with 0 and a summary, or with 1 and one sentence per fault. What is checked stands in `find_faults`; what only
macOS can tell (whether signatures hold, whether Gatekeeper lets it run) is left to packaging/sign.sh.
"""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers.expat import ExpatError

import build_paths
import bundle_facts
import macho
import metallib
from bundle_tree import Bundle, link_faults, mode_faults, read_bundle, total_bytes, version_tuple

from app.models.errors import ModelFileError
from app.models.verify import MANIFEST, check_model_folder

# What AutoTokenizer and mlx-lm open of the default model, besides its weights.
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "LICENSE")
_QT = ("QtCore", "QtGui", "QtWidgets")


@dataclass
class Report:
    """What was found: faults, each a sentence, and figures for the summary."""

    faults: list[str] = field(default_factory=list)
    files: int = 0
    links: int = 0
    macho_files: int = 0
    bytes: int = 0
    claims: list[str] = field(default_factory=list)
    others: list[build_paths.Found] = field(default_factory=list)


def find_faults(app: Path, roots: Iterable[Path]) -> Report:
    """Check the bundle `app` in full.

    Args:
        app: The .app folder.
        roots: Folders of the machine it was built on, none of whose paths may be in it.

    Raises:
        OSError: a file of the bundle can't be read.
    """
    bundle = read_bundle(app)
    report = Report(files=len(bundle.files), links=len(bundle.links), bytes=total_bytes(bundle))
    plist, faults = read_plist(app / "Contents" / "Info.plist")
    report.faults += faults
    oldest = _oldest_macos(plist)
    report.faults += link_faults(bundle)
    report.faults += mode_faults(bundle)
    report.faults += size_faults(report.bytes)
    executable = app / "Contents" / "MacOS" / bundle_facts.EXECUTABLE
    report.faults += executable_faults(bundle, executable)
    faults, report.claims, report.macho_files = macho.macho_faults(bundle, executable, oldest)
    report.faults += faults
    report.faults += metallib.metallib_faults(bundle, oldest)
    report.faults += qt_faults(bundle)
    report.faults += framework_faults(bundle)
    report.faults += model_faults(bundle)
    report.faults += icon_faults(bundle, plist)
    faults, report.others = build_paths.build_path_faults(bundle, roots)
    report.faults += faults
    return report


def read_plist(path: Path) -> tuple[dict[str, object], list[str]]:
    """Info.plist, and how it differs from what bundle_facts says. Keys that PyInstaller adds may be there."""
    try:
        plist = plistlib.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, ["There is no Contents/Info.plist, so this is no app."]
    except (plistlib.InvalidFileException, ExpatError, ValueError) as error:
        return {}, [f"Contents/Info.plist can't be read: {error}."]
    faults = []
    for key, wanted in bundle_facts.info_plist().items():
        if key not in plist:
            faults.append(f"Contents/Info.plist has no {key}; it should be {wanted!r}.")
        elif plist[key] != wanted:
            faults.append(f"Contents/Info.plist says {plist[key]!r} for {key}; it should be {wanted!r}.")
    return plist, faults


def _oldest_macos(plist: dict[str, object]) -> tuple[int, ...]:
    """The oldest macOS that the bundle promises to run on; what bundle_facts says where it promises nothing."""
    try:
        return version_tuple(str(plist["LSMinimumSystemVersion"]))
    except (KeyError, ValueError):
        return version_tuple(bundle_facts.MIN_MACOS)


def size_faults(size: int) -> list[str]:
    """Whether the bundle has outgrown its bound, in bytes."""
    if size < bundle_facts.MAX_BYTES:
        return []
    return [f"The bundle has {size:,} bytes; it should have fewer than {bundle_facts.MAX_BYTES:,}."]


def executable_faults(bundle: Bundle, executable: Path) -> list[str]:
    """Whether there is a file that may be started."""
    name = bundle.name(executable)
    if not executable.is_file():
        return [f"There is no executable {name}."]
    if not executable.stat().st_mode & stat.S_IXUSR:
        return [f"The file {name} may not be executed (mode {stat.S_IMODE(executable.stat().st_mode):o})."]
    return []


def qt_faults(bundle: Bundle) -> list[str]:
    """Qt's libraries that every window needs, and the plugin for macOS windows."""
    frameworks = {
        path.parent.parent.parent.name.removesuffix(".framework")
        for path in bundle.files
        if path.parent.parent.name == "Versions"
    }
    faults = [f"Qt's framework {name} is missing." for name in _QT if name not in frameworks]
    if not any(path.parent.name == "platforms" for path in bundle.named("libqcocoa.dylib")):
        faults.append("Qt's plugin platforms/libqcocoa.dylib is missing, so no window can open.")
    return faults


def framework_faults(bundle: Bundle) -> list[str]:
    """Frameworks that codesign refuses: each needs the links Versions/Current and, beside Versions, its library's."""
    faults = []
    for versions in sorted({path.parent.parent for path in bundle.files if path.parent.parent.name == "Versions"}):
        framework = versions.parent
        library = framework.name.removesuffix(".framework")
        if framework.suffix != ".framework":
            continue
        for link in (versions / "Current", framework / library):
            if not link.is_symlink():
                faults.append(f"{bundle.name(framework)} has no link {link.relative_to(framework)}; codesign needs it.")
    return faults


def model_faults(bundle: Bundle) -> list[str]:
    """Whether the default model is there, whole, and with its licence.

    It is looked for where the running app does, below sys._MEIPASS, which is Contents/Frameworks.
    """
    folder = bundle.root / "Contents" / "Frameworks" / bundle_facts.MODEL_FOLDER
    name = bundle.name(folder)
    if not folder.is_dir():
        return [f"The default model's folder {name} is missing."]
    try:
        check_model_folder(folder)
    except ModelFileError as error:
        return [str(error).replace(f"{bundle.root}{os.sep}", "")]
    record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    listed = set(record["files"])
    faults = [f"The default model's folder {name} has no {file}." for file in _MODEL_FILES if file not in listed]
    if not any(file.startswith("model") and file.endswith(".safetensors") for file in listed):
        faults.append(f"The default model's folder {name} has no weights (model*.safetensors).")
    if not record.get("licence") or not record.get("credit"):
        faults.append(f"{name}/{MANIFEST} doesn't name the model's licence and makers.")
    faults += [
        f"{bundle.name(path)} is in the model's folder and not in its {MANIFEST}."
        for path in sorted(folder.iterdir())
        if path.name not in listed and path.name != MANIFEST
    ]
    return faults


def icon_faults(bundle: Bundle, plist: dict[str, object]) -> list[str]:
    """Whether the icon that Info.plist names is there, and is one."""
    icon = plist.get("CFBundleIconFile")
    if not isinstance(icon, str) or not icon:
        return []  # told as a fault of Info.plist
    path = bundle.root / "Contents" / "Resources" / icon
    if not path.suffix:
        path = path.with_suffix(".icns")
    name = bundle.name(path)
    if not path.is_file():
        return [f"The icon {name} is missing."]
    start = path.read_bytes()[:8]
    # https://en.wikipedia.org/wiki/Apple_Icon_Image_format: "icns", then the file's size, high byte first
    if start[:4] != b"icns" or int.from_bytes(start[4:], "big") != path.stat().st_size:
        return [f"The icon {name} is no whole .icns file."]
    return []


def main(arguments: list[str] | None = None) -> int:
    """Check, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("app", type=Path, help="the .app folder")
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        help="another folder of the building machine whose path must not be in the bundle",
    )
    options = parser.parse_args(arguments)
    if not options.app.is_dir():
        print(f"There is no folder {options.app}; build it first with `make app` on a Mac.", file=sys.stderr)
        return 1
    report = find_faults(options.app, build_paths.build_roots(options.root))
    for fault in report.faults:
        print(fault, file=sys.stderr)
    if report.faults:
        count = len(report.faults)
        print(f"{options.app}: {count} {'fault' if count == 1 else 'faults'}.", file=sys.stderr)
        return 1
    print(
        f"{options.app}: no fault in {report.files:,} files ({report.macho_files} of them Mach-O) and {report.links:,} "
        f"links, {report.bytes / 1e6:,.0f} MB."
    )
    _print_some("files claim a newer macOS than they need:", report.claims)
    _print_some(
        "files name paths of the machines on which other people built their packages:",
        [f"{found.where}: {found.path}" for found in report.others],
    )
    return 0


def _print_some(heading: str, lines: list[str]) -> None:
    if lines:
        print(f"{len(lines)} {heading}")
        for line in lines[:10]:
            print(f"  {line}")
        if len(lines) > 10:
            print(f"  and {len(lines) - 10} more")


if __name__ == "__main__":
    sys.exit(main())
