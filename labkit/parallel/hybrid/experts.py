"""Experts shared out among some ranks, and routers that count the tokens of all."""

from __future__ import annotations

from torch import Tensor

from labkit.collectives import all_gather
from labkit.parallel.expert.parallel import ExpertParallel
from labkit.wire.group import Group


class Experts(ExpertParallel):
    """Tokens go to the experts on the ranks of `group`; what a router balances are the choices of `everyone`.

    everyone: all ranks that hold the same router, in the order of their examples. So the loss that balances, the load,
    and who is over the capacity are those of one device that has the tokens of a microbatch of all ranks.
    Sent for that, a layer and forward pass: an all-gather of k e numbers (8 bytes each) a rank.
    """

    def __init__(self, group: Group, everyone: Group) -> None:
        super().__init__(group)
        self.everyone = everyone

    def choices_of_all(self, chosen_ke: Tensor) -> tuple[Tensor, Tensor]:
        """(choices of all, of the ranks before this one): (k, e) each."""
        every_rke = all_gather(chosen_ke[None].contiguous(), self.everyone)
        return every_rke.sum(0), every_rke[: self.everyone.rank].sum(0)
