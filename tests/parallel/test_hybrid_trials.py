"""The planner against real runs: seconds of a step on emulated GPUs and links, and bytes of the training state."""

from __future__ import annotations

from statistics import median

import pytest

from labkit.cost.planner import Plan
from labkit.parallel import try_plan
from labkit.parallel.hybrid.trial import gpt_config, hybrid_config
from labkit.parallel.hybrid.trials import CASES, EXPERTS, SMALL, TRUE, emulated_cluster, fitted, try_cases
from labkit.wire.errors import RefusedError

SHORT = [case for case in CASES if case.plan.gpus == 2 and case.model.layers == 4 and case.domain == 2]


def check_bytes(rows):
    for row in rows:
        assert row.trial.nbytes == pytest.approx(row.case.state(), rel=0.01), row.case


@pytest.mark.ranks
def test_two_ranks_take_what_the_planner_says():
    """With the figures that the emulated machine has: nothing is fitted."""
    rows = try_cases(SHORT)
    assert len({c.plan.cut for c in SHORT}) == 4  # two ranks along each axis but data
    errors = [row.measured(TRUE).predicted(TRUE) / row.trial.seconds - 1 for row in rows]
    assert max(map(abs, errors)) < 0.10, list(zip(map(str, SHORT), errors, strict=True))
    check_bytes(rows)


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_table_is_predicted():
    assert len(CASES) >= 16 and {case.domain < case.plan.gpus for case in CASES} == {True, False}
    rows = try_cases(CASES)
    fit = fitted(rows)
    for which in ("fitted", "held out"):
        errors = fit.errors(which)
        assert median(errors) <= 0.10 and max(errors) <= 0.25, (str(fit), list(zip(CASES, fit.errors_of, strict=True)))
    for name in fit.figures:  # what the machine has is found, and not any numbers that happen to fit
        assert getattr(fit.efficiency, name) == pytest.approx(getattr(TRUE, name), rel=0.25), str(fit)
    check_bytes(rows)


def test_what_cannot_be_tried_is_refused():
    for plan, words in (
        (Plan(data=2, gradient_bytes=2), "recompute='selective'.*take recompute='all'"),
        (Plan(data=2, recompute="all"), "gradient_bytes=4.*take 2"),
    ):
        with pytest.raises(RefusedError, match=words):
            hybrid_config(plan)
    from labkit.cost.planner import MODELS

    with pytest.raises(RefusedError, match="Llama 3 8B: Hybrid trains a GPT with biases"):
        gpt_config(MODELS["Llama 3 8B"])
    with pytest.raises(ValueError, match="do not fill 4 GPUs"):
        try_plan(SMALL, emulated_cluster(4, 2), Plan(data=2, recompute="all", gradient_bytes=2))


def test_a_model_has_as_many_parameters_as_its_gpt():
    for model in {case.model.name: case.model for case in CASES}.values():
        assert gpt_config(model).num_parameters == pytest.approx(model.params, rel=2e-3)
    assert gpt_config(EXPERTS).moe.hidden == 2
