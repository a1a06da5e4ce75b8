"""The audit log: what every rank did to its state, line by line, in a file that only grows; and the proof from it.

    log = AuditLog(folder, replica=0, rank=1, incarnation=3)
    log.start(step, positions, checksum)                      a state made from the seed
    log.fetch(step, quorum, source, positions, checksum)      a state taken over
    log.vote(step, quorum, samples, yes)                      before the vote is sent
    log.commit(step, quorum, contributors, positions, parent, checksum)   when applied, before anybody can fetch it
    lines, torn = read(folder)
    check(lines, torn=torn, ranks=2, steps=100)               every sample once, replicas equal, updates agreed

Lines are in `records`, one life in `lives`, the surviving lineage in `lineage`, the proof in `proof`, its words in
`report`.
"""

from labkit.resilience.audit.log import AuditLog, checksum, read
from labkit.resilience.audit.proof import check
from labkit.resilience.audit.records import Commit, Fetch, Line, Start, Vote
from labkit.resilience.audit.report import AuditFailed, Report

__all__ = [
    "AuditFailed", "AuditLog", "Commit", "Fetch", "Line", "Report", "Start", "Vote", "check", "checksum", "read",
]  # fmt: skip
