"""A mixture of experts in the place of a feed-forward part: each token is computed by a few of many small networks.

Shazeer et al. 2017 ("Outrageously Large Neural Networks"), Lepikhin et al. 2020 ("GShard": two experts a token, and a
capacity), Fedus et al. 2021 ("Switch Transformer": one), Jiang et al. 2024 ("Mixtral"), Dai et al. 2024 ("DeepSeekMoE":
many fine-grained experts, and a shared one), Wang et al. 2024 ("Auxiliary-Loss-Free Load Balancing").

Names end in their shape: n tokens, d width, e experts, k choices of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MoEConfig:
    """experts: how many. choices: experts of a token, k. hidden: width inside an expert, in units of the model's width.
    shared: width of an expert that computes every token, in the same units; 0: there is none.

    capacity: None (dropless), or each expert takes at most ceil(capacity * n k / e) of the n k choices; what is over is
    dropped, and the token keeps what it had. drop: who is over. "position": first all first choices, then the second
    ones, each in the order of the tokens. "probability": those with the least weight.
    scores: "softmax" of the logits, or "sigmoid" of each. normalise: the k weights of a token add up to 1.
    balance: weight of e sum_i f_i P_i, which is 1 when all experts are chosen alike (Switch, section 2.2).
    z: weight of the mean of logsumexp(logits)^2 (Zoph et al. 2022, "ST-MoE").
    bias_rate: instead of a loss, after each step the bias of an expert with less load than the mean goes up by that
    much, and down with more; it decides who is chosen, and not how much a choice counts. 0: no bias.
    """

    experts: int = 8
    choices: int = 2
    hidden: float = 1.0
    shared: float = 0.0
    capacity: float | None = None
    drop: str = "position"
    scores: str = "softmax"
    normalise: bool = True
    balance: float = 0.01
    z: float = 0.0
    bias_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.experts < 1 or not 1 <= self.choices <= self.experts:
            raise ValueError(
                f"MoEConfig(experts={self.experts}, choices={self.choices}): at least one expert, and a token chooses "
                f"from 1 to all of them"
            )
        if self.capacity is not None and not self.capacity > 0:
            raise ValueError(f"MoEConfig(capacity={self.capacity}): a factor above 0, or None to drop nothing")
        for name, known in (("drop", ("position", "probability")), ("scores", ("softmax", "sigmoid"))):
            if getattr(self, name) not in known:
                raise ValueError(f"MoEConfig({name}={getattr(self, name)!r}): choose one of {', '.join(known)}")

    def num_parameters(self, width: int) -> int:
        """Of a layer: router, experts and shared expert."""
        d, h, s = width, max(1, round(self.hidden * width)), max(1, round(self.shared * width)) if self.shared else 0
        return self.experts * d + self.experts * (2 * d * h + h + d) + (2 * d * s + s + d if s else 0)

    def slots(self, tokens: int) -> int | None:
        """Choices that one expert takes out of those of `tokens` tokens; None: all."""
        if self.capacity is None:
            return None
        return max(1, -(-round(self.capacity * tokens * self.choices * 1e6) // (self.experts * 10**6)))


@dataclass
class Routing:
    """Which experts each token has chosen. experts, weights: (n, k), best first. kept: (n, k) bool, False if dropped.

    load: choices of each expert, dropped ones too, of all ranks' tokens together: (e,). losses: what is to be added to
    the loss, already weighted.
    """

    experts_nk: Tensor
    weights_nk: Tensor
    kept_nk: Tensor
    load_e: Tensor
    losses: Tensor

    @property
    def dropped(self) -> int:
        """Choices of this rank's tokens that no expert takes."""
        return int((~self.kept_nk).sum())


class Over(Protocol):
    """Over which ranks tokens go to experts: `Alone`, or `labkit.parallel.ExpertParallel`."""

    def held(self, experts: int) -> range:
        """The experts whose weights this rank has."""

    def choices_of_all(self, chosen_ke: Tensor) -> tuple[Tensor, Tensor]:
        """(those of all ranks' tokens, those of the ranks before this one): (k, e) each."""

    def keep_best(self, weights_kn: Tensor, experts_kn: Tensor, slots: int, experts: int) -> Tensor:
        """Which of this rank's choices are among the `slots` of their expert with the largest weights: (k, n) bool."""

    def run(self, rows_md: Tensor, counts_e: Tensor, experts: Run, meanwhile: Callable[[], Any]) -> tuple[Tensor, Any]:
        """Rows sorted by expert through their experts: (results in the same order, what `meanwhile()` gave)."""


Run = Callable[[Tensor, Sequence[int]], Tensor]  # rows of this rank's experts, sorted, and how many each has


class Alone:
    """All experts on this device."""

    def held(self, experts: int) -> range:
        return range(experts)

    def choices_of_all(self, chosen_ke: Tensor) -> tuple[Tensor, Tensor]:
        return chosen_ke, torch.zeros_like(chosen_ke)

    def keep_best(self, weights_kn: Tensor, experts_kn: Tensor, slots: int, experts: int) -> Tensor:
        return best_of_each(weights_kn.flatten(), experts_kn.flatten(), slots).view(weights_kn.shape)

    def run(self, rows_md: Tensor, counts_e: Tensor, experts: Run, meanwhile: Callable[[], Any]) -> tuple[Tensor, Any]:
        return experts(rows_md, counts_e.tolist()), meanwhile()


def best_of_each(weights: Tensor, experts: Tensor, slots: int) -> Tensor:
    """Of each expert's choices, flat, the `slots` with the largest weights; of equal ones the earlier. bool."""
    by_weight = weights.sort(descending=True, stable=True).indices
    order = by_weight[experts[by_weight].sort(stable=True).indices]  # by expert, and within by weight
    place = torch.arange(len(order), device=order.device) - _begins(experts)[experts[order]]
    return torch.empty_like(experts, dtype=torch.bool).index_put_((order,), place < slots)


def _begins(experts: Tensor) -> Tensor:
    """Where each expert's choices begin when all are sorted by expert."""
    counts = experts.bincount(minlength=int(experts.max()) + 1 if len(experts) else 1)
    return counts.cumsum(0) - counts


class Router(nn.Module):
    """Scores every expert for every token by one linear map, in 32 bits or more, and takes the best k.

    Of equal scores the expert with the lower number is taken. `bias`: see `MoEConfig.bias_rate`; it gets no gradient.
    """

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(width, config.experts, bias=False)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(config.experts))

    def forward(self, x_nd: Tensor, over: Over, gate_ed: Tensor) -> Routing:
        """(n, d) -> which experts, with what weight, and who is over. ValueError for logits that are no number."""
        config = self.config
        wide = torch.promote_types(x_nd.dtype, torch.float32)
        logits_ne = F.linear(x_nd.to(wide), gate_ed.to(wide))
        if not bool(torch.isfinite(logits_ne).all()):
            token = int((~torch.isfinite(logits_ne)).any(1).nonzero()[0])
            raise ValueError(f"the router's logits of token {token} are not finite: look at its input, and at the rate")
        scores_ne = logits_ne.sigmoid() if config.scores == "sigmoid" else logits_ne.softmax(-1)
        by_score = (scores_ne.detach() + self.bias.to(wide)).sort(dim=-1, descending=True, stable=True).indices
        experts_nk = by_score[:, : config.choices]
        weights_nk = scores_ne.gather(1, experts_nk)
        if config.normalise and config.choices > 1:
            weights_nk = weights_nk / weights_nk.sum(-1, keepdim=True)
        chosen_ke = torch.stack([column.bincount(minlength=config.experts) for column in experts_nk.T])
        all_ke, before_ke = over.choices_of_all(chosen_ke)
        load_e = all_ke.sum(0)
        kept_nk = self._kept(experts_nk, weights_nk.detach(), all_ke, before_ke, over)
        losses = x_nd.new_zeros((), dtype=wide)
        if config.balance:
            shares_ne = scores_ne if config.scores == "softmax" else scores_ne / scores_ne.sum(-1, keepdim=True)
            losses = losses + config.balance * config.experts * (load_e / load_e.sum() * shares_ne.mean(0)).sum()
        if config.z:
            losses = losses + config.z * logits_ne.logsumexp(-1).square().mean()
        return Routing(experts_nk, weights_nk.to(x_nd.dtype), kept_nk, load_e, losses)

    def _kept(self, experts_nk: Tensor, weights_nk: Tensor, all_ke: Tensor, before_ke: Tensor, over: Over) -> Tensor:
        slots = self.config.slots(int(all_ke[0].sum()))
        if slots is None:
            return torch.ones_like(experts_nk, dtype=torch.bool)
        if self.config.drop == "probability":
            return over.keep_best(weights_nk.T, experts_nk.T, slots, self.config.experts).T
        one_hot_nke = F.one_hot(experts_nk, self.config.experts)
        earlier_nke = one_hot_nke.cumsum(0) - one_hot_nke  # the same choice of the tokens before, on this rank
        place_nke = earlier_nke + before_ke + (all_ke.cumsum(0) - all_ke)  # on other ranks, and all better choices
        return place_nke.gather(2, experts_nk[..., None])[..., 0] < slots

    @torch.no_grad()
    def rebalance(self, load_e: Tensor) -> None:
        """Move the bias by one step against the load: call it after each optimizer step."""
        if self.config.bias_rate:
            self.bias += self.config.bias_rate * (load_e.double().mean() - load_e).sign().to(self.bias.dtype)


def losses_of(module: nn.Module) -> Tensor:
    """The sum of what the routers of all mixtures in `module` add to the loss, of the last forward pass."""
    found = [layer.routing.losses for layer in module.modules() if isinstance(layer, MoE) and layer.routing is not None]
    return torch.stack(found).sum() if found else torch.zeros(())


class Expert(nn.Module):
    """Two linear maps with a GELU between. h: its hidden width."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x_nd: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.down(F.gelu(self.up(x_nd)))


class MoE(nn.Module):
    """Router, experts, and perhaps a shared one. `routing` is that of the last forward pass.

    experts: by their number as text; this rank's only, once `ExpertParallel` has put itself in `over`.
    """

    def __init__(self, width: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.over: Over = Alone()
        self.routing: Routing | None = None
        hidden = max(1, round(config.hidden * width))
        self.router = Router(width, config)
        self.experts = nn.ModuleDict({str(e): Expert(width, hidden) for e in range(config.experts)})
        self.shared = Expert(width, max(1, round(config.shared * width))) if config.shared else None

    def forward(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d): the weighted results of the chosen experts, and of the shared one."""
        return self.combined(x_btd.flatten(0, -2), self.router.gate.weight).view(x_btd.shape)

    def combined(self, x_nd: Tensor, gate_ed: Tensor) -> Tensor:
        """(n, d) -> (n, d). gate: the router's weights."""
        self.routing = routing = self.router(x_nd, self.over, gate_ed)
        token, choice = routing.kept_nk.nonzero(as_tuple=True)
        expert = routing.experts_nk[token, choice]
        order = expert.sort(stable=True).indices
        token, choice, expert = token[order], choice[order], expert[order]
        counts_e = expert.bincount(minlength=self.config.experts)
        y_md, shared_nd = self.over.run(
            x_nd[token], counts_e, self.run_experts, lambda: None if self.shared is None else self.run_shared(x_nd)
        )
        weighted_md = routing.weights_nk[token, choice, None] * y_md
        y_nd = torch.zeros_like(x_nd).index_add(0, token, weighted_md.to(x_nd.dtype))
        return y_nd if shared_nd is None else y_nd + shared_nd

    def run_experts(self, rows_md: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows sorted by expert through this rank's experts. One that got no row gives a gradient of zeros."""
        parts = [expert(part) for expert, part in zip(self.experts.values(), rows_md.split(list(counts)), strict=True)]
        return torch.cat(parts) if parts else rows_md

    def run_shared(self, x_nd: Tensor) -> Tensor:
        """All tokens through the shared expert."""
        assert self.shared is not None
        y_nd: Tensor = self.shared(x_nd)
        return y_nd
