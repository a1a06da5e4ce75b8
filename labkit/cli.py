"""The command `labkit`: open the chapters, keep copies new, run unattended, measure, ask what this machine can do.

This file reads the command line; `labkit.commands` does the work. Nothing heavy is imported before
it is known which command was meant, so that help and errors come at once.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from labkit.commands import UsageError
from labkit.commands.grade_options import Wanted, add_grade

BENCHMARKS = {
    "launch": "how soon ranks run, against torch.multiprocessing.spawn",
    "workbench": "from a control that moves to the new picture; a second call into kept ranks against a launch",
    "collectives": "own collectives against gloo's native ones",
    "trace": "what recording every message costs",
    "data-parallel": "DDP, ZeRO-1 and FSDP against PyTorch's own",
    "model-parallel": "tensor and pipeline parallelism against PyTorch's own, and the simulator against runs",
    "hybrid": "context parallelism, all axes at once, and the planner against real runs",
    "loose": "stragglers, slow links and servers: time to a loss, and updates a second against torch.distributed.rpc",
    "precision": "what few bits save on the wire and in memory, and what they cost in loss",
    "align": "PPO, GRPO and DPO as a fleet: packing, resharding, placements of four models, a truth that rises",
    "failures": "what fault tolerance costs, and how soon a run goes on when something breaks",
    "ntp": "what replicas of different width cost the whole one, on emulated links",
    "grade": "how long grading takes, and whether it judges right",
    "large-batches": "the shipped runs of chapter 7, made again",
    "recovery-accuracy": "the shipped runs of chapter 19 on the quality of the model, made again",
    "fleet-trials": "the shipped runs of chapter 21 that check the simulator of a failing fleet, made again",
}


def main(argv: Sequence[str] | None = None, notebooks: Path | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 failed, 2 wrongly asked, 130 interrupted.

    argv: the words after `labkit`; those of the process when None. notebooks: where chapters are
    looked for, instead of the repository.
    """
    arguments = _parser().parse_args(argv)
    try:
        return _dispatch(arguments, notebooks)
    except UsageError as error:
        print(f"labkit {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: argparse.Namespace, notebooks: Path | None) -> int:
    match arguments.command:
        case "lab":
            from labkit.commands.lab import open_lab

            open_lab(arguments.chapter, arguments.port, arguments.browser, arguments.folder, notebooks)
        case "sync":
            from labkit.commands.sync import sync

            return sync(arguments.chapters, arguments.folder, arguments.dry_run, notebooks)
        case "run":
            from labkit.commands.run import run_chapter

            return run_chapter(arguments.chapter, arguments.parameters, arguments.out, arguments.timeout, notebooks)
        case "sweep":
            from labkit.commands.sweeping.sweep import sweep

            return sweep(
                arguments.chapter, arguments.parameters, arguments.jobs, arguments.out, arguments.timeout, notebooks
            )
        case "progress":
            from labkit.commands.progress import show_progress

            return show_progress(arguments.json, notebooks)
        case "html":
            from labkit.commands.html.pages import html_pages

            return html_pages(arguments.chapters, arguments.out, notebooks)
        case "release":
            from labkit.commands.release import release

            return release(
                arguments.chapters, arguments.check, arguments.bundle, arguments.wheels, arguments.run, notebooks
            )
        case "grade":
            from labkit.commands.grade import grade

            return grade(Wanted.of(arguments), notebooks)
        case "bench":
            return _call(f"labkit.bench.{arguments.benchmark.replace('-', '_')}", arguments.rest)
        case _:
            return _call("labkit.world.doctor", arguments.rest)


def _call(module: str, rest: Sequence[str]) -> int:
    """Hand the remaining words to `main(argv)` of a module, which may return an exit code."""
    code = importlib.import_module(module).main(list(rest))
    return 0 if code is None else int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit", description="Distributed training, learned by doing it.")
    parser.add_argument("--version", action="version", version=f"labkit {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_lab(commands)
    _add_sync(commands)
    _add_run(commands)
    _add_sweep(commands)
    _add_progress(commands)
    _add_html(commands)
    _add_release(commands)
    add_grade(commands)
    _add_bench(commands)
    _add_doctor(commands)
    return parser


def _add_lab(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on your own copy of a chapter",
        description="Open JupyterLab on your own copy of a chapter, the first one by default. Copies are made at "
        "first use, without outputs; one that exists is never overwritten. The server listens on this machine "
        "only. Without a browser it prints the address to open.",
    )
    lab.add_argument("chapter", nargs="?", metavar="CHAPTER", help="number or name, such as 3")
    _add_folder(lab)
    lab.add_argument("--port", type=_port, default=8888, help="first port to try (default: 8888)")
    lab.add_argument(
        "--browser",
        action=argparse.BooleanOptionalAction,
        help="open a browser, or only print the address (default: open one if there is a screen)",
    )


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--folder", type=Path, metavar="DIR", help="where your copies lie (default: $LABKIT_WORK, or ~/labkit)"
    )


def _add_sync(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sync = commands.add_parser(
        "sync",
        help="bring a new edition of the book into your copies",
        description="Bring a new edition of the book into your copies, cell by cell. What you wrote stays. Where you "
        "and the edition changed the same cell, the edition's stands below yours, marked. Your files are kept aside "
        "first.",
    )
    sync.add_argument("chapters", nargs="*", metavar="CHAPTER", help="numbers or names; all when none is given")
    _add_folder(sync)
    sync.add_argument("--dry-run", action="store_true", help="only say what would change")


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="run a chapter from top to bottom",
        description="Run a chapter from top to bottom without a browser, and keep the executed notebook, "
        "also when a cell fails.",
        epilog="example: labkit run 3 -p world_size=8",
    )
    run.add_argument("chapter", metavar="CHAPTER", help="number or name, such as 3")
    run.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter of the chapter; may be repeated. A wrong name lists the right ones",
    )
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="where the executed notebook goes (default: runs/DATE-TIME)"
    )
    run.add_argument(
        "--timeout", type=_seconds, default=300, metavar="SECONDS", help="limit for each cell (default: 300)"
    )


def _add_sweep(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sweep = commands.add_parser(
        "sweep",
        help="run a chapter for many values, and compare",
        description="Run a chapter for all combinations of some values, and collect the numbers that it records in a "
        "table and a figure. Runs that are finished are not repeated: give the same command again to go on.",
        epilog="example: labkit sweep 3 -p world_size=2,4,8 -p transport=local,gloo\n"
        "A value that is a list keeps its brackets: -p 'sizes=[1,2]' is one value, -p 'sizes=[1],[1,2]' are two.\n"
        "Runs at the same time slow each other down: take --jobs 1 when you compare times.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument("chapter", metavar="CHAPTER", help="number or name, such as 3")
    sweep.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="values of a parameter of the chapter; may be repeated",
    )
    sweep.add_argument("--jobs", type=_count, metavar="N", help="runs at the same time (default: by the cores)")
    sweep.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: runs/sweep_CHAPTER)")
    sweep.add_argument(
        "--timeout", type=_seconds, default=300, metavar="SECONDS", help="limit for each cell (default: 300)"
    )


def _add_progress(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    progress = commands.add_parser(
        "progress",
        help="say what you have read, predicted and answered",
        description="Say what you have read, predicted and answered, chapter by chapter, and what to do next. "
        "It is known to this machine only.",
    )
    progress.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_html(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    html = commands.add_parser(
        "html",
        help="write the chapters as static pages",
        description="Write the chapters as static pages with an index, from the notebooks as they were saved. "
        "The pages need no network and no script.",
    )
    html.add_argument("chapters", nargs="*", metavar="CHAPTER", help="numbers or names; all when none is given")
    html.add_argument("--out", type=Path, metavar="DIR", help="where the pages go (default: site)")


def _add_release(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    release = commands.add_parser(
        "release",
        help="for instructors: make the students' exercises, or the archive for a class",
        description="Write exercises/ from the instructor's notebooks in solutions/: stubs for solutions, no hidden "
        "checks. A source that is not in order, or of which a student would see too much, is refused.",
        epilog="example: labkit release --bundle class.zip --wheels wheels",
    )
    release.add_argument("chapters", nargs="*", metavar="CHAPTER", help="numbers or names; all when none is given")
    release.add_argument("--check", action="store_true", help="write nothing; fail unless exercises/ is up to date")
    release.add_argument("--bundle", type=Path, metavar="FILE.zip", help="also write the archive that a class receives")
    release.add_argument(
        "--wheels", type=Path, metavar="DIR", help="wheels to put into the archive, so that it installs offline"
    )
    release.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the stubs for the outputs of the public checks (default), or keep the outputs that are there",
    )


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser(
        "bench",
        help="measure this machine",
        description="Measure on this machine. Everything is a ratio within one run.",
        epilog="benchmarks:\n" + "\n".join(f"  {name:<19}{what}" for name, what in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("benchmark", choices=BENCHMARKS, metavar="BENCHMARK", help=", ".join(BENCHMARKS))
    bench.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="options of the benchmark, such as --json FILE; `labkit bench launch --help` lists them",
    )


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine can do, and why",
        description="Say what this machine can do for labkit, and why.",
        add_help=False,
        prefix_chars="\0",  # no word is an option to this parser: all of them go to the doctor
    )
    doctor.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="options of the doctor")


def _seconds(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of seconds from 1")
    return int(word)


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 1")
    return int(word)


def _port(word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= 65535:
        raise argparse.ArgumentTypeError(f"{word!r} is not a port: choose 1 to 65535")
    return int(word)


def _version() -> str:
    try:
        return version("labkit")
    except PackageNotFoundError:
        return "(not installed: run `make install`)"


if __name__ == "__main__":
    sys.exit(main())
