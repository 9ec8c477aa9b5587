"""Before a release: `python packaging/release.py check`; in CI: `tag v0.1.0` and `notes`. Standard library only.

The version stands in one place, app/__init__.py. CHANGELOG.md's newest entry must be of that version and dated.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
_ENTRY = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?(?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


class NotReadyError(RuntimeError):
    """The release can't be made; the message is a sentence that says what to do."""


@dataclass(frozen=True)
class Entry:
    """An entry of the changelog: its version, its date or None, its text without the heading."""

    version: str
    date: str | None
    text: str


def read_version(root: Path) -> str:
    """The version in app/__init__.py.

    Raises:
        NotReadyError: there is none of the form 1.2.3.
    """
    found = _VERSION.search((root / "app" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise NotReadyError('app/__init__.py has no line like __version__ = "1.2.3".')
    return found[1]


def read_changelog(root: Path) -> list[Entry]:
    """The entries of CHANGELOG.md (https://keepachangelog.com), newest first, an empty "Unreleased" left out.

    Raises:
        NotReadyError: there is no entry.
    """
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = list(_ENTRY.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    entries = [
        Entry(heading["version"], heading["date"], text[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    ]
    entries = [entry for entry in entries if entry.text or entry.version != "Unreleased"]
    if not entries:
        raise NotReadyError("CHANGELOG.md has no entry.")
    return entries


def newest_entry(root: Path) -> Entry:
    """The changelog's newest entry, which must be the version's.

    Raises:
        NotReadyError: it is of another version, without date or without text.
    """
    version, entry = read_version(root), read_changelog(root)[0]
    if entry.version == "Unreleased":
        raise NotReadyError(f'CHANGELOG.md has changes under "Unreleased"; move them to an entry for {version}.')
    if entry.version != version:
        raise NotReadyError(
            f"app/__init__.py says version {version} and CHANGELOG.md's newest entry is {entry.version}; make them one."
        )
    if entry.date is None or not entry.text:
        raise NotReadyError(f"CHANGELOG.md's entry for {version} has no date or no text.")
    return entry


def check(root: Path) -> str:
    """Whether a release can be made of the working tree; returns what to do next.

    Raises:
        NotReadyError: no, and why.
    """
    entry = newest_entry(root)
    tag = f"v{entry.version}"
    changed = _git(root, "status", "--porcelain")
    if changed:
        names = ", ".join(line[3:] for line in changed.splitlines()[:5])
        raise NotReadyError(f"The working tree is not clean; commit or remove first: {names}.")
    if _git(root, "tag", "--list", tag):
        raise NotReadyError(f"The tag {tag} is there already; raise the version in app/__init__.py for a new release.")
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD")
    if branch != "main":
        raise NotReadyError(f"Releases are made from the branch main, and this is {branch}.")
    return (
        f"Everything is ready for {tag}. Now:\n"
        f"  git tag -a {tag} -m 'VeloxQuant Chat {entry.version}'\n"
        f"  git push origin main {tag}\n"
        "The workflow `app` then builds, checks and signs the app, and makes a draft of the release. Read the draft, "
        "try the app, and publish it."
    )


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if run.returncode:
        raise NotReadyError(f"git {' '.join(arguments)} failed: {run.stderr.strip()}")
    return run.stdout.rstrip()


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Checks and texts for a release.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="whether a release can be made, and how")
    commands.add_parser("notes", help="print the changelog's text of the version")
    commands.add_parser("version", help="print the version")
    commands.add_parser("tag", help="check that a tag is the version's").add_argument("name")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            print(check(root))
        elif options.command == "version":
            print(read_version(root))
        else:
            entry = newest_entry(root)
            if options.command == "notes":
                print(entry.text)
            elif options.name != f"v{entry.version}":
                raise NotReadyError(f"The tag {options.name} is not that of version {entry.version}.")
    except NotReadyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
