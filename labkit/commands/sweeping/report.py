"""The end of a sweep: a table (printed, CSV, JSON) and a figure (SVG, HTML) of what the runs recorded."""

import csv
import io
import json
from html import escape
from pathlib import Path

from labkit.book.drawing.page import page
from labkit.book.drawing.tables import Table
from labkit.commands.chapters import Chapter
from labkit.commands.sweeping.figure import draw
from labkit.commands.sweeping.run import SweepRun, jsonable
from labkit.files import write_atomically


def report(chapter: Chapter, runs: list[SweepRun], folder: Path) -> None:
    """Print the table of all runs that were begun, and write the files into `folder`."""
    begun = [run for run in runs if run.status != "waiting"]
    table = Table([run.row() for run in begun], caption=f"{chapter.path.stem}: {len(begun)} of {len(runs)} runs")
    print(f"\n{table}\n")
    files = {"table.csv": _csv(table), "table.json": _json(chapter, begun)}
    figure = draw([run for run in begun if run.status == "ran"], f"Chapter {chapter.number}: what the runs recorded")
    picture = "<p>There is no picture: it takes a parameter that varies, and a number that two runs recorded.</p>"
    if figure is not None:
        files["figure.svg"] = figure.svg
        picture = f"<figure>{figure.svg}<figcaption>{escape(figure.sentence)}</figcaption></figure>"
    body = f"<h1>Sweep of {chapter.path.stem}</h1>\n{picture}\n<h2>All runs</h2>\n"
    # A wide table scrolls by itself, also from the keyboard.
    body += f'<div class="wide" tabindex="0" role="region" aria-label="Table of all runs">{table._repr_html_()}</div>'
    files["figure.html"] = page(f"Sweep of {chapter.path.stem}", body)
    for name, text in files.items():
        write_atomically(folder / name, text)
    if figure is None:
        (folder / "figure.svg").unlink(missing_ok=True)
        if begun and not any(run.records for run in begun):
            print("this chapter recorded no numbers: a cell with chapter.record(name=number) would")
    print(f"in {folder}: {', '.join(files)}", flush=True)


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, table.columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in table)
    return out.getvalue()


def _json(chapter: Chapter, runs: list[SweepRun]) -> str:
    rows = [
        {
            "parameters": {name: jsonable(value) for name, value in run.values.items()},
            "status": run.status, "problem": run.problem, "seconds": round(run.seconds, 2), "records": run.records,
            "folder": run.folder.name, "key": run.key,
        }
        for run in runs
    ]  # fmt: skip
    return json.dumps({"schema": 1, "chapter": chapter.path.stem, "runs": rows}, indent=1, ensure_ascii=False) + "\n"
