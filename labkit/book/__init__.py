"""What a chapter shows: figures of runs, a stepper through recorded collectives, source listings, small marks.

    timeline(trace)              who did what when
    schedule(schedule)           what each rank of a pipeline does, and where it is idle; also of a simulation or a run
    case(case)                   a case file: evidence to buy, a verdict to give
    diagnosis(verdict)           who holds up a job: operations, and ranks inside them
    wait_for(error)              who waits for whom in a schedule that is a deadlock
    byte_matrix(trace)           who sent how much to whom
    mesh(layout, 4)              ranks, axes and nodes: who works with whom
    topology(machine, mesh)      a machine level by level, and which of its wires the axes of a mesh need
    replay(trace)                step through a recorded collective, chunk by chunk
    play(pictures)               pictures of a process, to step through or to play
    record(trace)                the data behind it, to compute with
    cost_curves(curves, points)  time against size: the model, and the reader's measurements
    bars(values)                 measured beside computed
    lines(values)                a loss by step, an error by size
    cuts(chain, ranks)           how ranks share the matrices of a product
    shard_layouts(map)           who computes with each shard, who sums it, and which ones move in between
    shard_board(12, 4, 3)        the same to deal out by hand
    step_breakdown(trace)        where each rank's time went
    workbench(run, controls, ..) controls that start real ranks, and pictures of what these did
    explorer(title, sliders, fn) sliders for a model's assumptions, and what it says of them
    source(fn)                   labkit's own lines
    around(mine, fn)             the same, once the reader's function in them is right
    badge, quoted                marks
    conclude(sentence, x=1)      a sentence that follows the result, kept with its numbers
    dashboard(job)               a live view of a job, while it runs; of a fault-tolerant run with its replicas
    replicas(run)                what happened to the replicas of a fault-tolerant run
    live()                       whether a reader is there to press buttons
    open_chapter(name)           predictions, quizzes and records of a chapter

Every figure is a `Figure`: plotly, an SVG and words in one, with `.table()` for its numbers. Names load when first
used, and neither plotly nor anywidget is imported before something needs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
