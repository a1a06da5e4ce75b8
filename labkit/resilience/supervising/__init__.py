"""A fault-tolerant run from outside: its supervisor, its quorum service, what happened to it, and the run in one call.

run.run_ft_hsdp, run.start_ft_hsdp      service, ranks, supervisor and audit; `outcome.FtRun` is what is left
supervisor.Supervisor                   ends what is left of a replica that broke, and starts it anew
"""
