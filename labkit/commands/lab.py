"""`labkit lab`: JupyterLab on the reader's own copy of a chapter, reachable from this machine only."""

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from labkit.commands.chapters import all_chapters, find_chapter, notebooks_dir
from labkit.commands.copies import HIDDEN, Copies, File, edition_files, is_newer, make_copies, work_folder
from labkit.commands.environment import jupyter_environment


def open_lab(
    wanted: str | None = None,
    port: int = 8888,
    browser: bool | None = None,
    folder: Path | None = None,
    notebooks: Path | None = None,
) -> NoReturn:
    """Become a JupyterLab server that opens the reader's copy of chapter `wanted`, of the first one when None.

    port: the first to try; JupyterLab takes the next free one. browser: None looks whether there is one.
    folder: where the reader's copies lie; $LABKIT_WORK or ~/labkit when None. Copies that do not exist are made.
    JupyterLab prints its address, with the key that it asks for. Raises UsageError for an unknown chapter, and for
    a folder that cannot be.
    """
    directory = notebooks or notebooks_dir()
    chapter = find_chapter(directory, wanted) if wanted else all_chapters(directory)[0]
    copies, files = work_folder(folder, os.environ, directory), edition_files(directory)
    made = make_copies(copies, files)
    print("\n".join(_told(copies, files, made)), flush=True)
    show = can_show_a_browser(os.environ) if browser is None else browser
    command = lab_command(copies.folder / "notebooks" / chapter.path.name, port, show)
    if not show:
        print(f"no browser opens here: open the address below to read {chapter.path.name}", flush=True)
    os.execve(sys.executable, command, jupyter_environment(os.environ))


def _told(copies: Copies, files: list[File], made: list[File]) -> list[str]:
    """Where the copies are, which are new, and which the edition has outrun."""
    new = sum(file.is_notebook for file in made)
    notebooks = f" ({new} new {'notebook' if new == 1 else 'notebooks'})" if new else ""
    lines = [f"your own copies: {copies.folder}{notebooks}"]
    older = [file.source.stem for file in files if file.is_notebook and file not in made and is_newer(copies, file)]
    if older:
        lines.append(f"the book has a newer edition of {', '.join(older)}: `labkit sync` brings it into your copies")
    return lines


def lab_command(notebook: Path, port: int, browser: bool) -> list[str]:
    """The command line that serves the folder with `notebook`, two levels up, on the loopback address."""
    root = notebook.parent.parent
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{quote(str(notebook.relative_to(root)))}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--LabApp.workspaces_dir={root / HIDDEN / 'workspaces'}",  # the tabs that are open belong to this folder
        "--log-level=WARN",
    ]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        command.append("--allow-root")  # in a container there may be nobody else
    return command


def can_show_a_browser(environment: Mapping[str, str]) -> bool:
    """Whether a browser with a window can open. A text browser would take over the terminal instead."""
    if sys.platform != "darwin" and not {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & set(environment):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
