"""The checker's parts on small files made here: headers, links, modes, Info.plist, the icon, build paths."""

from __future__ import annotations

import io
import plistlib
import struct
import sys
import zipfile
from pathlib import Path

import build_paths
import bundle_facts
import pytest
import verify_bundle
from bundle_tree import is_newer, link_faults, mode_faults, read_bundle, total_bytes, version_text
from macho import DamagedMachOError, Library, is_macho, macho_faults, read_slices
from macho_symbols import system_imports
from macholib import mach_o  # type: ignore[import-untyped]
from metallib import DamagedMetallibError, Metallib, metallib_faults, newest_metal, read_metallib, too_new

from app import __version__
from app.models.verify import write_manifest
from tests.packaging.macos_tree import frozen_archive

ARM64, INTEL = 0x0100000C, 0x01000007
EXECUTABLE, LIBRARY = 2, 6
LOAD, LOAD_WEAK, RPATH = mach_o.LC_LOAD_DYLIB, mach_o.LC_LOAD_WEAK_DYLIB, mach_o.LC_RPATH


def macho(
    *paths: tuple[int, str],
    cpu: int = ARM64,
    kind: int = LIBRARY,
    minos: tuple[int, int] | None = (14, 0),
    signed: bool = True,
    symbols: tuple[tuple[str, int, bool], ...] = (),
) -> bytes:
    """A 64-bit Mach-O header; `paths` are load commands with a path, `symbols` are (name, library, weak) imports."""
    commands = []
    for command, path in paths:
        text = path.encode() + b"\0" * (8 - len(path) % 8)
        start = 12 if command == RPATH else 24
        rest = b"" if command == RPATH else struct.pack("<3I", 2, 0, 0)
        commands.append(struct.pack("<3I", command, start + len(text), start) + rest + text)
        if len(commands[-1]) % 8:
            commands[-1] += b"\0" * 4
            commands[-1] = commands[-1][:4] + struct.pack("<I", len(commands[-1])) + commands[-1][8:]
    if minos:
        commands.append(struct.pack("<6I", mach_o.LC_BUILD_VERSION, 24, 1, minos[0] << 16 | minos[1] << 8, 26 << 16, 0))
    if signed:
        commands.append(struct.pack("<4I", mach_o.LC_CODE_SIGNATURE, 16, 0, 0))
    names, table = b"\0", b""
    for name, library, weak in symbols:
        table += struct.pack("<IBBHQ", len(names), 1, 0, library << 8 | (0x40 if weak else 0), 0)
        names += name.encode() + b"\0"
    size = sum(map(len, commands)) + 24
    start = 32 + size
    commands.append(struct.pack("<6I", mach_o.LC_SYMTAB, 24, start, len(symbols), start + len(table), len(names)))
    header = struct.pack("<8I", 0xFEEDFACF, cpu, 0, kind, len(commands), size, 0, 0)
    return header + b"".join(commands) + table + names


def fat(*slices: tuple[int, bytes]) -> bytes:
    """A universal file of slices (processor, content)."""
    place, heads, bodies = 4096, b"", b""
    for cpu, body in slices:
        heads += struct.pack(">5I", cpu, 0, place + len(bodies), len(body), 12)
        bodies += body
    return (struct.pack(">2I", 0xCAFEBABE, len(slices)) + heads).ljust(4096, b"\0") + bodies


def metallib(macos: tuple[int, int] = (14, 0), languages: tuple[tuple[int, int], ...] = ((3, 1),)) -> bytes:
    """A Metal library with a function per language version and no code."""
    listing = struct.pack("<I", len(languages))
    for language in languages:
        tags = b"NAME" + struct.pack("<H", 2) + b"f\0" + b"VERS" + struct.pack("<5H", 8, 2, 6, *language) + b"ENDT"
        listing += struct.pack("<I", len(tags) + 4) + tags
    head = struct.pack("<4s3HBB2HQ2Q", b"MTLB", 0x8001, 2, 7, 0, 0x81, *macos, 88 + len(listing), 88, len(listing) - 4)
    return head.ljust(88, b"\0") + listing


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_mach_o_headers_are_read(tmp_path: Path) -> None:
    intel = macho(cpu=INTEL, minos=(10, 13), signed=False)
    arm64 = macho((LOAD, "@rpath/libx.dylib"), (LOAD_WEAK, "/usr/lib/liby.dylib"), (RPATH, "@loader_path/lib"))
    path = write(tmp_path / "both", fat((INTEL, intel), (ARM64, arm64)))
    assert is_macho(path)
    first, second = read_slices(path)
    assert (first.architecture, first.minimum, first.signed) == ("x86_64", (10, 13, 0), False)
    assert (second.architecture, second.minimum, second.signed, second.kind) == ("arm64", (14, 0, 0), True, LIBRARY)
    assert second.libraries == (Library("@rpath/libx.dylib", weak=False), Library("/usr/lib/liby.dylib", weak=True))
    assert second.rpaths == ("@loader_path/lib",)


def test_mach_o_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    assert is_macho(write(tmp_path / "no_suffix", macho()))
    assert not is_macho(write(tmp_path / "text.dylib", b"#!/bin/sh\n"))
    assert not is_macho(write(tmp_path / "empty.so", b""))
    assert not is_macho(write(tmp_path / "Some.class", b"\xca\xfe\xba\xbe\0\0\0\x34"))  # Java's, of version 52


@pytest.mark.parametrize("length", [5, 31, 40, 60])
def test_a_cut_off_header_is_damage(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "cut", macho((LOAD, "/usr/lib/libSystem.B.dylib"))[:length])
    with pytest.raises(DamagedMachOError):
        read_slices(path)


def test_imports_count_when_they_are_the_systems_and_needed(tmp_path: Path) -> None:
    symbols = (("_malloc", 1, False), ("_newest", 1, True), ("_ours", 2, False), ("_python", 254, False))
    data = macho((LOAD, "/usr/lib/libSystem.B.dylib"), (LOAD, "@rpath/libx.dylib"), symbols=symbols)
    assert system_imports(write(tmp_path / "lib", data)) == {"_malloc"}


def code_faults(root: Path) -> list[str]:
    faults, _, _ = macho_faults(read_bundle(root), root / "MacOS" / "main", (14, 0))
    return faults


def test_libraries_are_looked_for_as_dyld_does(tmp_path: Path) -> None:
    write(tmp_path / "MacOS/main", macho((RPATH, "@executable_path/../Frameworks"), kind=EXECUTABLE))
    write(tmp_path / "Frameworks/libz.dylib", macho())
    write(
        tmp_path / "Frameworks/a/lib/liba.dylib", macho((LOAD, "@loader_path/libb.dylib"), (LOAD, "@rpath/libz.dylib"))
    )
    write(tmp_path / "Frameworks/a/lib/libb.dylib", macho((LOAD, "@executable_path/../Frameworks/libz.dylib")))
    write(tmp_path / "Frameworks/a/core.so", macho((RPATH, "@loader_path/lib"), (LOAD, "@rpath/liba.dylib")))
    # Through the link, @loader_path is still the folder of the file itself.
    (tmp_path / "Frameworks/liba.dylib").symlink_to("a/lib/liba.dylib")
    assert code_faults(tmp_path) == []
    write(tmp_path / "Frameworks/a/lib/libb.dylib", macho((LOAD, "@loader_path/libc.dylib")))
    assert code_faults(tmp_path) == [
        "Frameworks/a/lib/libb.dylib loads @loader_path/libc.dylib, which is not in the bundle where dyld looks for it."
    ]


def test_a_weak_library_may_be_missing_and_never_foreign(tmp_path: Path) -> None:
    write(tmp_path / "MacOS/main", macho((LOAD_WEAK, "@rpath/libnone.dylib"), kind=EXECUTABLE))
    assert code_faults(tmp_path) == []
    write(tmp_path / "MacOS/main", macho((LOAD_WEAK, "/opt/homebrew/lib/libnone.dylib"), kind=EXECUTABLE))
    assert "/opt/homebrew/lib/libnone.dylib" in code_faults(tmp_path)[0]


def test_an_absolute_rpath_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path / "MacOS/main", macho((RPATH, "/Users/me/lib"), (RPATH, "/usr/lib/swift"), kind=EXECUTABLE))
    assert code_faults(tmp_path) == [
        "MacOS/main looks for libraries in /Users/me/lib, outside of the bundle and the system."
    ]


def test_a_library_outside_of_the_bundle_is_not_in_it(tmp_path: Path) -> None:
    write(tmp_path / "libx.dylib", macho())
    write(tmp_path / "app/MacOS/main", macho((LOAD, "@loader_path/../../libx.dylib"), kind=EXECUTABLE))
    assert len(code_faults(tmp_path / "app")) == 1


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (macho(kind=EXECUTABLE, signed=False), "has no code signature"),
        (macho(kind=EXECUTABLE, minos=None), "doesn't say which macOS it needs"),
        (macho(kind=EXECUTABLE, minos=(14, 1)), "says it needs macOS 14.1"),
        (macho(kind=LIBRARY), "can't be started"),
        (macho(kind=EXECUTABLE, cpu=INTEL), "has no arm64 code, only x86_64"),
        (b"#!/bin/sh\n", "is no Mach-O file"),
    ],
)
def test_an_executable_that_can_not_be_started(tmp_path: Path, data: bytes, fault: str) -> None:
    write(tmp_path / "MacOS/main", data)
    (found,) = code_faults(tmp_path)
    assert fault in found


def test_a_library_that_claims_a_newer_macos_is_measured_by_what_it_imports(tmp_path: Path) -> None:
    write(tmp_path / "MacOS/main", macho(kind=EXECUTABLE))
    system = (LOAD, "/usr/lib/libSystem.B.dylib")
    old = (("_malloc", 1, False), ("___fminf16", 1, True))
    write(tmp_path / "lib", macho(system, minos=(15, 0), symbols=old))
    faults, claims, count = macho_faults(read_bundle(tmp_path), tmp_path / "MacOS/main", (14, 0))
    assert (faults, len(claims), count) == ([], 1, 2)
    write(tmp_path / "lib", macho(system, minos=(15, 0), symbols=(("___fminf16", 1, False),)))
    (fault,) = code_faults(tmp_path)
    assert fault.startswith("lib says it needs macOS 15.0")
    assert "imports ___fminf16" in fault
    # A list of what macOS 14 has says nothing about 13.
    write(tmp_path / "lib", macho(system, minos=(14, 0), symbols=old))
    faults, claims, _ = macho_faults(read_bundle(tmp_path), tmp_path / "MacOS/main", (13, 0))
    assert len(faults) == 2
    assert not claims


def test_metal_libraries_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "mlx.metallib", metallib((15, 2), ((3, 0), (3, 2), (3, 1))))
    assert read_metallib(path) == Metallib((15, 2), (3, 2), 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few"),
        (b"PK\3\4" + bytes(96), "no Metal library"),
        (metallib()[:-1], "bytes instead of"),
        (metallib(languages=()), "no functions"),
        (metallib().replace(b"VERS", b"XERS"), "list of functions can't be read"),
        (metallib()[:11] + b"\x82" + metallib()[12:], "another system"),
    ],
)
def test_what_is_no_whole_metal_library(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(DamagedMetallibError, match=reason):
        read_metallib(write(tmp_path / "mlx.metallib", data))


def test_which_metal_a_macos_loads() -> None:
    assert [newest_metal((major,)) for major in (12, 14, 15, 20, 26, 27)] == [
        (3, 0), (3, 1), (3, 2), (3, 2), (4, 0), (4, 0)
    ]  # fmt: skip
    assert too_new(Metallib((14, 0), (3, 1), 1), (14, 0)) is None
    assert too_new(Metallib((14, 0), (3, 1), 1), (15, 0)) is None
    assert too_new(Metallib((14, 0), (3, 2), 1), (14, 0)) is not None
    assert too_new(Metallib((14, 1), (3, 1), 1), (14, 0)) is not None


def test_metal_kernels_beside_links_and_targets(tmp_path: Path) -> None:
    assert metallib_faults(read_bundle(tmp_path), (14, 0)) == ["The bundle has no libmlx.dylib, so no model can run."]
    write(tmp_path / "mlx/lib/libmlx.dylib", b"code")
    (tmp_path / "libmlx.dylib").symlink_to("mlx/lib/libmlx.dylib")
    write(tmp_path / "mlx.metallib", metallib())
    assert metallib_faults(read_bundle(tmp_path), (14, 0)) == [
        "There is no mlx.metallib beside mlx/lib/libmlx.dylib, where MLX looks for its kernels."
    ]
    (tmp_path / "mlx/lib/mlx.metallib").symlink_to("../../mlx.metallib")
    assert metallib_faults(read_bundle(tmp_path), (14, 0)) == []
    (tmp_path / "mlx.metallib").unlink()  # and the link dangles
    assert len(metallib_faults(read_bundle(tmp_path), (14, 0))) == 2


def test_a_folder_that_is_a_link_needs_no_kernels_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "a/libmlx.dylib", b"code")
    write(tmp_path / "a/mlx.metallib", metallib())
    (tmp_path / "b").symlink_to("a")
    assert metallib_faults(read_bundle(tmp_path), (14, 0)) == []


def test_links(tmp_path: Path) -> None:
    write(tmp_path / "app/file", b"1")
    write(tmp_path / "outside", b"2")
    inside = str(tmp_path / "app/file")
    targets = {"good": "file", "nothing": "missing", "out": "../outside", "absolute": inside, "self": "self"}
    for name, target in targets.items():
        (tmp_path / "app" / name).symlink_to(target)
    faults = link_faults(read_bundle(tmp_path / "app"))
    assert [fault.partition(",")[0].partition(":")[0] for fault in faults] == [
        f"The link absolute points to the absolute path {tmp_path}/app/file; make it relative.",
        "The link nothing dangles",
        "The link out leads out of the bundle",
        "The link self dangles",
    ]


def test_modes(tmp_path: Path) -> None:
    write(tmp_path / "good", b"").chmod(0o755)
    assert mode_faults(read_bundle(tmp_path)) == []
    write(tmp_path / "open", b"").chmod(0o666)
    write(tmp_path / "raised", b"").chmod(0o4755)
    assert mode_faults(read_bundle(tmp_path)) == [
        "open may be written to by everybody (mode 666).",
        "raised runs as another user (mode 4755).",
    ]


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "one", b"12345")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    (tmp_path / "three").symlink_to("one")
    assert total_bytes(read_bundle(tmp_path)) == 5


def test_versions_compare_as_numbers() -> None:
    assert is_newer((14, 1), (14,))
    assert not is_newer((14, 0, 0), (14,))
    assert not is_newer((9,), (14, 0))
    assert (version_text((14,)), version_text((14, 0, 0)), version_text((14, 0, 1))) == ("14", "14.0", "14.0.1")


@pytest.mark.parametrize("key", sorted(bundle_facts.info_plist()))
def test_every_key_of_info_plist_is_compared(tmp_path: Path, key: str) -> None:
    plist = bundle_facts.info_plist()
    assert verify_bundle.read_plist(write(tmp_path / "Info.plist", plistlib.dumps(plist))) == (plist, [])
    del plist[key]
    _, missing = verify_bundle.read_plist(write(tmp_path / "Info.plist", plistlib.dumps(plist)))
    _, wrong = verify_bundle.read_plist(write(tmp_path / "Info.plist", plistlib.dumps(plist | {key: "other"})))
    assert len(missing) == len(wrong) == 1
    assert missing[0].startswith(f"Contents/Info.plist has no {key};")
    assert wrong[0].startswith(f"Contents/Info.plist says 'other' for {key};")


@pytest.mark.parametrize("data", [b"", b"no plist", b"<plist><dict>", b"bplist00x"])
def test_an_info_plist_that_can_not_be_read(tmp_path: Path, data: bytes) -> None:
    plist, faults = verify_bundle.read_plist(write(tmp_path / "Info.plist", data))
    assert plist == {}
    assert len(faults) == 1
    assert "can't be read" in faults[0]


def test_icons(tmp_path: Path) -> None:
    path = tmp_path / "Contents/Resources/x.icns"
    bundle = read_bundle(tmp_path)
    assert verify_bundle.icon_faults(bundle, {"CFBundleIconFile": "x"}) == [
        "The icon Contents/Resources/x.icns is missing."
    ]
    write(path, b"icns" + struct.pack(">I", 12) + b"data")
    assert verify_bundle.icon_faults(bundle, {"CFBundleIconFile": "x.icns"}) == []
    write(path, b"icns" + struct.pack(">I", 12) + b"dat")
    assert "no whole .icns file" in verify_bundle.icon_faults(bundle, {"CFBundleIconFile": "x.icns"})[0]


def test_the_model_needs_weights_tokenizer_and_licence(tmp_path: Path) -> None:
    folder = tmp_path / "Contents/Frameworks" / bundle_facts.MODEL_FOLDER
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "LICENSE", "model-00001-of-00002.safetensors")
    for name in names:
        write(folder / name, b"{}")
    facts = {"licence": "Apache-2.0", "credit": "somebody"}
    write_manifest(folder, facts)
    bundle = read_bundle(tmp_path)
    assert verify_bundle.model_faults(bundle) == []
    for name in names:
        (folder / name).rename(tmp_path / "aside")
        assert "can't be read" in verify_bundle.model_faults(bundle)[0]
        (folder / "manifest.json").unlink()
        write_manifest(folder, facts)  # a folder that was made without it
        assert len(verify_bundle.model_faults(bundle)) == 1
        (tmp_path / "aside").rename(folder / name)
        assert verify_bundle.model_faults(bundle)[-1].endswith(
            f"{bundle_facts.MODEL_FOLDER}/{name} is in the model's folder and not in its manifest.json."
        )
        (folder / "manifest.json").unlink()
        write_manifest(folder, facts)
    (folder / "manifest.json").unlink()
    write_manifest(folder, {})
    assert "doesn't name the model's licence" in verify_bundle.model_faults(bundle)[0]


def found_in(folder: Path, *roots: str) -> list[str]:
    mine, _ = build_paths.find_build_paths(read_bundle(folder), [Path(root) for root in roots])
    return [f"{found.where}: {found.path}" for found in mine]


def test_build_paths_in_files_links_and_archives(tmp_path: Path) -> None:
    write(tmp_path / "b/text", b"x\0/made/here/app.py\0/made/hereafter/no")
    write(tmp_path / "b/other", b"/made/hereafter/no /made/here-too/no")
    write(tmp_path / "b/code.pyc", compile("", "/made/here/code.py", "exec").co_filename.encode())
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("abc.pyc", b"/made/here/abc.py" * 20)
    write(tmp_path / "b/lib.zip", zipped.getvalue())
    frozen = frozen_archive(tmp_path, {"app.main": "x = '/made/here/main.py: x'", "app.store": "x = 'fine'"})
    write(tmp_path / "b/main", b"code" + frozen + b"signature")
    (tmp_path / "b/link").symlink_to("/made/here/target")
    assert found_in(tmp_path / "b", "/made/here", "/made/there") == [
        "link: /made/here/target",
        "code.pyc: /made/here/code.py",
        "lib.zip!abc.pyc: " + "/made/here/abc.py" * 11 + "/made/here/ab",
        "main!PYZ.pyz!app.main: /made/here/main.py",
        "text: /made/here/app.py",
    ]


def test_other_peoples_paths_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "lib", b"\0/Users/runner/theirs/mlx/x.cpp\0")
    mine, others = build_paths.find_build_paths(read_bundle(tmp_path), [Path("/Users/runner/ours")])
    assert (mine, others) == ([], [build_paths.Found("lib", "/Users/runner/theirs/mlx/x.cpp")])


def test_a_damaged_archive_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path / "lib.zip", b"PK\3\4 and no more")
    faults, _ = build_paths.build_path_faults(read_bundle(tmp_path), [Path("/made/here")])
    assert len(faults) == 1
    assert faults[0].startswith("An archive in the bundle can't be read")


def test_which_folders_are_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/Users/runner")
    monkeypatch.setenv("GITHUB_WORKSPACE", "/Users/runner/ours/chat")
    monkeypatch.setenv("TMPDIR", "/var/folders/zz/of_the_image/T")
    roots = build_paths.build_roots([tmp_path])
    # Wheels of other people are built in a home of that name, too.
    assert Path("/Users/runner") not in roots
    assert {bundle_facts.ROOT, Path("/Users/runner/ours/chat"), tmp_path} <= set(roots)
    # Nor is a hosted machine's temporary folder its own: it is named in the image all of them are copies of.
    assert Path("/var/folders/zz/of_the_image/T") not in roots
    assert (Path(sys.prefix) in roots) == (sys.prefix != sys.base_prefix)
    monkeypatch.setenv("HOME", "/Users/me")
    assert {Path("/Users/me"), Path("/var/folders/zz/of_the_image/T")} <= set(build_paths.build_roots())


def test_no_bundle_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_bundle.main([str(tmp_path / "no.app")]) == 1
    assert "There is no folder" in capsys.readouterr().err
    assert __version__ == bundle_facts.info_plist()["CFBundleVersion"]
