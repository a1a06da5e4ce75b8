"""Pipeline parallelism: schedules as data, and one door to each of their uses.

    naive, gpipe, one_f_one_b, interleaved   (stages, microbatches) -> Schedule: what each rank does, in order
    zb_h1, zb_h2, zb_v, v_half, pipedream    the same, with a small bubble or none
    labels(schedule), from_labels(rows)      PyTorch's notation, both ways
    validate(schedule)                       is everything there, in an order that can run? What does it hold?
    simulate(schedule, Costs(...))           when everything begins and ends
    Pipeline(modules, group, loss).execute   the schedule on real ranks; or execute(schedule, modules, group, ...)
    gpt_stages(config, schedule, group)      this rank's part of a GPT
    with_messages(schedule)                  the same schedule with its sends and receives written out

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
