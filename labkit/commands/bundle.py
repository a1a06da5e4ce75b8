"""The archive that a class receives: `labkit release --bundle class.zip`.

    class/install.py          makes an environment and installs labkit in it
    class/package/*.whl       labkit
    class/constraints.txt     the versions that labkit was tested with
    class/wheels/*.whl        with --wheels: everything that pip needs, so that nothing is downloaded
    class/notebooks/...       the chapters as working copies, without outputs
    class/exercises/...       the exercises, without outputs; never a solution, a hidden check or a mutant

The same repository gives the same bytes but for the wheel, whose making is up to its build system.
"""

import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.commands import UsageError
from labkit.commands.chapters import all_chapters
from labkit.commands.copies import edition_files, pristine, written
from labkit.commands.release import Leaked, made_from, read
from labkit.commands.wheel import build_wheel
from labkit.grading.source import SourceError, secrets_of
from labkit.grading.source.leaks import Secret, leaks_in_file

INSTALL = Path(__file__).with_name("install_bundle.py")
PRIVATE = {"solutions", "mutants"}  # folders of which nothing may be in an archive, at any depth
WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format: an archive does not change with the day it was made

Builder = Callable[[Path, Path], Path]


def write_bundle(path: Path, notebooks: Path, wheels: Path | None = None, build: Builder = build_wheel) -> bool:
    """Write the archive to `path`. Returns False, and says why, when something secret would be in it.

    notebooks: the repository's; exercises/, solutions/ and constraints.txt lie beside it. wheels: a folder whose wheels
    go into the archive. Raises UsageError.
    """
    root = notebooks.parent
    if path.suffix != ".zip":
        raise UsageError(f"--bundle {path}: name a file that ends in .zip")
    if wheels is not None and not any(wheels.glob("*.whl")):
        raise UsageError(f"--wheels {wheels}: there is no wheel; fill it with `pip wheel . -c constraints.txt -w DIR`")
    try:
        secrets = _secrets(root / "solutions", notebooks)
        with tempfile.TemporaryDirectory(prefix="labkit-bundle-") as folder:
            package = build(root, Path(folder))
            content = _content(notebooks, package, wheels)
            _refuse_leaks(content, secrets)
            _write(path, content)
    except (SourceError, Leaked) as error:
        print(f"{path.name}: not written: {error}", file=sys.stderr)
        return False
    except OSError as error:
        raise UsageError(f"--bundle {path}: {error.strerror}; choose a place that can be written") from error
    offline = "; it installs without a network" if wheels is not None else ""
    print(f"{path}: {len(content)} files, {path.stat().st_size / 1e6:.1f} MB{offline}")
    return True


def _secrets(solutions: Path, notebooks: Path) -> list[Secret]:
    """The secret lines of all sources. Raises SourceError, and Leaked where a source cannot be released."""
    found: list[Secret] = []
    for chapter in all_chapters(solutions):
        source = read(chapter, notebooks)
        made_from(source)
        found += secrets_of(source.notebook)
    return found


def _content(notebooks: Path, package: Path, wheels: Path | None) -> dict[str, bytes]:
    """The files of the archive by their names in it."""
    root = notebooks.parent
    content = {"install.py": INSTALL.read_bytes(), f"package/{package.name}": package.read_bytes()}
    for name in ("constraints.txt", "LICENSE", "README.md"):
        if (root / name).is_file():
            content[name] = (root / name).read_bytes()
    if "constraints.txt" not in content:
        raise UsageError(f"there is no {root / 'constraints.txt'}: the archive needs the versions to install")
    for file in edition_files(notebooks):
        data = written(pristine(file.source)).encode() if file.is_notebook else file.source.read_bytes()
        content[file.name] = data
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else []:
        content[f"wheels/{wheel.name}"] = wheel.read_bytes()
    return content


def _refuse_leaks(content: dict[str, bytes], secrets: Iterable[Secret]) -> None:
    """Raises Leaked for a private folder, in the archive or in the wheel, and for secrets in any of our own files."""
    secrets = list(secrets)
    found = []
    for name, data in content.items():
        if name.startswith("wheels/"):
            continue  # other people's, and large
        inner = zipfile.ZipFile(io.BytesIO(data)).namelist() if name.endswith(".whl") else []
        found += [f"{name}: {place}" for place in (name, *inner) if PRIVATE & set(Path(place).parts)]
        found += [str(leak) for leak in leaks_in_file(secrets, name, data, shared=not name.startswith("exercises/"))]
    if found:
        raise Leaked("\n".join(["it would show what is secret:", *found]))


def _write(path: Path, content: dict[str, bytes]) -> None:
    """One folder, named as the archive; files in order, with one date, replaced in one step."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sorted(content.items()):
                entry = zipfile.ZipInfo(f"{path.stem}/{name}", WHEN)
                entry.external_attr = 0o644 << 16
                packed = name.endswith(".whl")
                archive.writestr(entry, data, zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
