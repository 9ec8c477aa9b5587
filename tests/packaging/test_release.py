"""What a release is made with: the version and its changelog entry, the workflows, the shell scripts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import bundle_facts
import pytest
import release
import yaml  # type: ignore[import-untyped]
from lock_file import APP_PYTHON

SCRIPTS = ("sign.sh", "notarize.sh", "make_dmg.sh")
WORKFLOWS = sorted((bundle_facts.ROOT / ".github" / "workflows").glob("*.yml"))


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that is ready for the release of 1.2.3."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text('"""App."""\n\n__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- This.\n\n"
        "## [1.2.2] - 2025-01-01\n\n- Old.\n"
    )
    git(tmp_path, "init", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_release_that_is_ready(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check"], project) == 0
    assert "git push origin main v1.2.3" in capsys.readouterr().out
    assert release.main(["notes"], project) == 0
    assert capsys.readouterr().out == "### Added\n\n- This.\n"
    assert release.main(["version"], project) == 0
    assert capsys.readouterr().out == "1.2.3\n"
    assert release.main(["tag", "v1.2.3"], project) == 0


def change(project: Path, name: str, old: str, new: str) -> None:
    path = project / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    git(project, "commit", "-am", "change")


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("app/__init__.py", "1.2.3", "1.2.4", "newest entry is 1.2.3; make them one"),
        ("app/__init__.py", "1.2.3", "next", "no line like"),
        ("CHANGELOG.md", " - 2026-01-02", "", "no date or no text"),
        ("CHANGELOG.md", "### Added\n\n- This.\n", "", "no date or no text"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n", "move them to an entry for 1.2.3"),
    ],
)
def test_version_and_changelog_must_agree(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, why: str
) -> None:
    change(project, name, old, new)
    assert release.main(["check"], project) == 1
    assert why in capsys.readouterr().err


def test_what_else_holds_a_release_up(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["tag", "v1.2.4"], project) == 1
    assert "The tag v1.2.4 is not that of version 1.2.3." in capsys.readouterr().err
    git(project, "checkout", "-b", "work")
    assert release.main(["check"], project) == 1
    assert "this is work" in capsys.readouterr().err
    git(project, "checkout", "main")
    (project / "new.txt").touch()
    assert release.main(["check"], project) == 1
    assert "not clean; commit or remove first: new.txt." in capsys.readouterr().err
    (project / "new.txt").unlink()
    git(project, "tag", "v1.2.3")
    assert release.main(["check"], project) == 1
    assert "The tag v1.2.3 is there already" in capsys.readouterr().err


def test_this_version_has_a_changelog_entry() -> None:
    assert release.newest_entry(bundle_facts.ROOT).version == bundle_facts.info_plist()["CFBundleShortVersionString"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_whole_and_ask_for_what_they_need(name: str, tmp_path: Path) -> None:
    script = bundle_facts.ROOT / "packaging" / name
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    run = subprocess.run([str(script), str(tmp_path / "none.app")], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("Usage: packaging/")


def test_notarization_names_the_key_that_is_missing(tmp_path: Path) -> None:
    script = bundle_facts.ROOT / "packaging" / "notarize.sh"
    environment = {"PATH": "/usr/bin:/bin", "NOTARY_KEY_FILE": "key.p8"}
    run = subprocess.run([str(script), str(tmp_path)], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("NOTARY_KEY_ID is not set")


def workflow(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_workflows_may_do_little_and_use_pinned_actions(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}
    for name, job in workflow(path)["jobs"].items():
        assert "timeout-minutes" in job
        # Only the job that makes the release may write, and it builds nothing.
        assert "permissions" not in job or (name == "release" and job["permissions"] == {"contents": "write"})
    for step in steps_of(path):
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
        # In a command line a secret could be read from the process list, or end up in the log.
        assert "secrets." not in step.get("run", "")
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_workflows_call_what_is_there(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in steps_of(path))
    for name in re.findall(r"(?:tests/)?packaging/[\w.]+", commands):
        assert (bundle_facts.ROOT / name).is_file()
    assert subprocess.run(["bash", "-n", "-c", commands], check=False).returncode == 0


def test_the_app_is_built_with_its_python_and_run_under_its_names() -> None:
    path = bundle_facts.ROOT / ".github" / "workflows" / "app.yml"
    built = workflow(path)
    assert built["env"]["PYTHON_VERSION"] == APP_PYTHON
    assert built["jobs"]["macos"]["env"]["APP"] == f"dist/{bundle_facts.MACOS_APP.name}"
    commands = "\n".join(step.get("run", "") for step in steps_of(path))
    assert f"Contents/MacOS/{bundle_facts.EXECUTABLE}" in commands
    assert f'tar.gz" {bundle_facts.EXECUTABLE}' in commands
    assert "pytest -m large tests/packaging/test_frozen.py" in commands
