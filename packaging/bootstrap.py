"""Set-up for running from the source tree: `python3 packaging/bootstrap.py run|test|system`. Standard library only.

`run` and `test` see to it that the system's libraries, .venv with what the lock file names, and the default model are
there; each step is done only when it is needed, and a step that failed or was interrupted is done again by the next
run. `system` is the first step alone, for machines where it needs another user.

This folder has no __init__.py on purpose: as a package it would hide the package index's own `packaging`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Holds the hash of what is installed; is there only after an installation that ended well.
STAMP = VENV / "installed"
# Is there while packages are being installed; found by a later run, it means that nobody knows what is whole.
INSTALLING = VENV / "installing"
LOCKS = {"run": ("requirements.lock",), "test": ("requirements.lock", "requirements-dev.lock")}

# Every library from outside that Qt's platform plugins offscreen, xcb and wayland, and the modules the app uses, name
# in their ELF headers (NEEDED), beyond libc and the C++ runtime; and OpenBLAS, which makes MLX 85 times faster on CPU.
# The packages are Debian's and Ubuntu's. A package's own dependencies come with it (fonts with libfontconfig1).
LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libX11.so.6": "libx11-6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libopenblas.so.0": "libopenblas0-pthread",
    "libstdc++.so.6": "libstdc++6",
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
    "libwayland-server.so.0": "libwayland-server0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-glx.so.0": "libxcb-glx0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxcb.so.1": "libxcb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libz.so.1": "zlib1g",
    "libzstd.so.1": "libzstd1",
}


def main(arguments: list[str]) -> None:
    """Do the steps of `arguments[0]`; exits with code 1 and a sentence when one fails."""
    if len(arguments) != 1 or arguments[0] not in (*LOCKS, "system"):
        fail("Usage: python3 packaging/bootstrap.py run|test|system")
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything has checked
        fail(f"Python 3.11 or newer is needed; {sys.executable} is {platform.python_version()}.")
    purpose = arguments[0]
    if sys.platform.startswith("linux"):
        set_up_system()
    if purpose == "system":
        return
    # Two terminals may start at the same time; the second waits here, and then finds everything done.
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up_venv()
        install(purpose)
    set_up_model()


def set_up_system() -> None:
    """Install the missing Debian packages as root; otherwise say which command does, or which libraries are missing."""
    missing = missing_libraries()
    packages = sorted({LIBRARIES[name] for name in missing})
    if importlib.util.find_spec("ensurepip") is None:
        # Debian keeps this part of the standard library in a package named after the Python at hand.
        packages.append(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
        missing.append("Python's module ensurepip")
    if not packages:
        return
    if shutil.which("apt-get") is None:
        fail(
            "These system libraries are missing; install them with the system's package manager: " + ", ".join(missing)
        )
    install_command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        fail(
            "System packages are missing. Install them with this command, then try again:\n"
            f"sudo apt-get update && sudo {' '.join(install_command)}"
        )
    say(f"Installing system packages: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quietly = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    call([*quietly, "update"], "apt-get could not read the lists of packages", environment)
    call([*quietly, *install_command[1:]], "apt-get could not install the system packages", environment)
    still = missing_libraries()
    if still:
        fail(f"These system libraries are missing although their packages are installed: {', '.join(still)}")


def missing_libraries() -> list[str]:
    """The names in LIBRARIES that the dynamic loader doesn't know."""
    # Debian has /sbin on root's path only.
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is None:
        fail("The program ldconfig is missing, so the system's libraries can't be checked.")
    known = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    if "=>" not in known:
        fail(f"The program {ldconfig} lists no libraries, so the system's libraries can't be checked.")
    # One line per library: "libz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1"; 32-bit ones don't count.
    names = {
        line.split()[0]
        for line in known.splitlines()
        if "=>" in line and ("64" in line.partition("=>")[0] or platform.machine() not in ("x86_64", "aarch64"))
    }
    return [name for name in LIBRARIES if name not in names]


def set_up_venv() -> None:
    """Make .venv, or make it again when it is broken, of another Python, or half-installed."""
    if VENV.exists() and (INSTALLING.exists() or not is_sound()):
        say("Removing .venv: it is broken, half-installed or of another Python")
        shutil.rmtree(VENV)
    if not VENV.exists():
        say(f"Making .venv with Python {platform.python_version()}")
        call([sys.executable, "-m", "venv", str(VENV)], "The virtual environment .venv could not be made")


def is_sound() -> bool:
    """Whether .venv runs, has pip, is in its place, and belongs to the Python that runs this."""
    probe = "import importlib.util as u, sys; print(sys.version, sys.base_prefix, sys.prefix, bool(u.find_spec('pip')))"
    try:
        answer = subprocess.run([str(PYTHON), "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.stdout.strip() == f"{sys.version} {sys.base_prefix} {VENV} True"


def install(purpose: str) -> None:
    """Install what the lock file for `purpose` names, unless that was done with the same lock files before."""
    wanted = fingerprint(purpose)
    # What tests need includes what running needs.
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") in (wanted, fingerprint("test")):
        return
    lock = LOCKS[purpose][-1]
    say(f"Installing the packages of {lock} (some minutes the first time)")
    STAMP.unlink(missing_ok=True)
    INSTALLING.touch()
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    options = ["--require-hashes", "--only-binary=:all:", "--requirement", str(ROOT / lock)]
    call([*pip, *options], f"pip could not install the packages of {lock}; check the network connection and try again")
    INSTALLING.unlink()
    STAMP.write_text(wanted, encoding="utf-8")


def fingerprint(purpose: str) -> str:
    """A hash of the lock files that `purpose` uses."""
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in LOCKS[purpose])).hexdigest()


def set_up_model() -> None:
    """Fetch and convert the default model if it isn't there; app.models says what it does."""
    code = subprocess.run([str(PYTHON), "-m", "app.models"], cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


def call(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """Run `command`, whose complaints stay visible; exit with `failure` when it fails."""
    nothing = subprocess.DEVNULL
    code = subprocess.run(command, env=environment, check=False, stdin=nothing, stdout=nothing).returncode
    if code:
        fail(f"{failure} (exit code {code}).")


def say(text: str) -> None:
    """One line per step."""
    print(text, flush=True)


def fail(text: str) -> NoReturn:
    """End with exit code 1."""
    print(text, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        print("Stopped; the next run goes on from here.", file=sys.stderr)
        sys.exit(130)
