"""What a hybrid run cannot be, said before anything is built: every rank finds the same, so all refuse alike."""

from __future__ import annotations

from dataclasses import asdict, fields

from labkit.cost.parallel.context import CONTEXT_LAYOUTS
from labkit.models.gpt import GPTConfig
from labkit.parallel.fitting import check_fits
from labkit.parallel.hybrid.config import AXES, DATA, SCHEDULES, SPLIT, HybridConfig
from labkit.parallel.pipeline.running.stages import layers_of
from labkit.parallel.refusals.same_model import check_same
from labkit.parallel.tensor.degrees import check_divides
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


def check_alike(model: GPTConfig, config: HybridConfig, options: dict[str, object], group: Group) -> None:
    """Raise RefusedError on every rank unless all bring the same. One all-gather of 16 bytes a rank."""
    words = {f"config {name}": repr(value) for name, value in asdict(model).items()}
    words |= {f"option {name}": repr(value) for name, value in asdict(config).items()}
    check_same(words | {f"option {name}": repr(value) for name, value in options.items()}, group)


def check(model: GPTConfig, config: HybridConfig, size: int) -> None:
    """Raise RefusedError, in one sentence, for what cannot be done with `model` on `size` ranks."""
    _numbers(config)
    check_fits({axis: getattr(config, axis) for axis in config.order}, size)
    _data(config)
    _tensor(model, config)
    _pipeline(model, config)
    _context(model, config)
    _experts(model, config)


def _numbers(config: HybridConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type == "int" and (type(value) is not int or value < 1):
            raise RefusedError(f"HybridConfig({field.name}={value!r}): a whole number, 1 or more")
    for name, known in (("data", DATA), ("schedule", (*SCHEDULES, "interleaved")), ("layout", CONTEXT_LAYOUTS)):
        if getattr(config, name) not in known:
            raise RefusedError(f"HybridConfig({name}={getattr(config, name)!r}): choose one of {', '.join(known)}")
    if sorted(config.order) != sorted(AXES):
        raise RefusedError(f"HybridConfig(order={config.order!r}): needs each of {', '.join(AXES)} once")


def _data(config: HybridConfig) -> None:
    dp, data, shard = config.dp, config.data, config.shard
    if (shard is not None) != (data == "hsdp"):
        said = f"data='hsdp' needs shard=, a divisor of dp={dp}" if shard is None else "shard= goes with data='hsdp'"
        raise RefusedError(f"HybridConfig(data={data!r}, shard={shard!r}): {said}")
    if shard is not None and (type(shard) is not int or shard < 1 or dp % shard):
        raise RefusedError(f"HybridConfig(dp={dp}, shard={shard!r}): as many ranks as cut must divide dp, {_fit(dp)}")
    if config.pp == 1:
        return
    if data in ("zero2", "zero3"):
        raise RefusedError(
            f"HybridConfig(data={data!r}, pp={config.pp}): {data} "
            f"{'frees a block when its backward is over' if data == 'zero3' else 'sends gradients in each backward'}"
            ", and a pipeline has several microbatches under way, whose gradients it adds up: use zero1, fsdp or hsdp"
        )
    if data in ("fsdp", "hsdp") and config.schedule in SPLIT:
        raise RefusedError(
            f"HybridConfig(data={data!r}, schedule={config.schedule!r}): {data} reduces a unit's gradients when the "
            "last of them is there, and this schedule makes some of them now and some later: use one_f_one_b, gpipe "
            "or interleaved"
        )


def _tensor(model: GPTConfig, config: HybridConfig) -> None:
    tp = config.tp
    dimensions = {"heads": model.heads}
    if model.kv_heads is not None:
        dimensions["kv_heads"] = model.kv_heads
    if model.moe is None:
        dimensions["expansion * width"] = model.expansion * model.width
    else:
        dimensions["hidden width of an expert"] = max(1, round(model.moe.hidden * model.width))
    check_divides(f"HybridConfig(tp={tp}) of this model", dimensions, tp)
    if model.vocab < tp:
        raise RefusedError(f"HybridConfig(tp={tp}): a vocabulary of {model.vocab} has not one id for each rank")
    if config.sequence_parallel and tp == 1:
        raise RefusedError("HybridConfig(sequence_parallel=True, tp=1): it cuts positions among the ranks of tp; use 2")


def _pipeline(model: GPTConfig, config: HybridConfig) -> None:
    pp, chunks, schedule = config.pp, config.chunks, config.schedule
    if pp == 1:
        if chunks > 1:
            raise RefusedError(
                f"HybridConfig(pp=1, chunks={chunks}): chunks go around the ranks of a pipeline; use pp=2"
            )
        return
    wanted = {"interleaved": chunks > 1, "zb_v": chunks == 2, "v_half": chunks == 2}.get(schedule, chunks == 1)
    if not wanted:
        need = {"interleaved": "2 chunks or more", "zb_v": "chunks=2", "v_half": "chunks=2"}.get(schedule, "chunks=1")
        raise RefusedError(f"HybridConfig(schedule={schedule!r}, chunks={chunks}): this schedule has {need}")
    layers_of(model.layers, pp * chunks)
    config.pipeline_schedule()


def _context(model: GPTConfig, config: HybridConfig) -> None:
    cp, ulysses = config.cp, config.ulysses
    if cp % ulysses:
        raise RefusedError(
            f"HybridConfig(cp={cp}, ulysses={ulysses}): the ranks that share heads divide cp, {_fit(cp)}"
        )
    here = model.heads // config.tp
    if here % ulysses:
        raise RefusedError(
            f"HybridConfig(ulysses={ulysses}, tp={config.tp}): a rank has {here} of the {model.heads} heads, which "
            f"{ulysses} ranks cannot share evenly: choose {_fit(here)}, and let the ring do the rest"
        )
    if cp > 1 and model.dropout:
        raise RefusedError(
            f"HybridConfig(cp={cp}) with GPTConfig(dropout={model.dropout}): attention over several ranks has no "
            "dropout: set dropout=0, or cp=1"
        )


def _experts(model: GPTConfig, config: HybridConfig) -> None:
    ep, moe = config.ep, model.moe
    if moe is None:
        if ep > 1:
            raise RefusedError(f"HybridConfig(ep={ep}): this model has no experts: give GPTConfig(moe=...), or ep=1")
        return
    cut = config.dp if config.shard is None else config.shard
    if cut % ep:
        name = "dp" if config.shard is None else "shard"
        raise RefusedError(
            f"HybridConfig(ep={ep}, {name}={cut}): the ranks that share experts are neighbours along dp, and {ep} must "
            f"divide {name}: choose {_fit(cut)}"
        )
    if moe.experts % ep:
        raise RefusedError(f"HybridConfig(ep={ep}): {moe.experts} experts are shared out evenly by {_fit(moe.experts)}")
    if moe.capacity is not None and config.cp > 1:
        raise RefusedError(
            f"HybridConfig(cp={config.cp}) with MoEConfig(capacity={moe.capacity}): who is over depends on the order "
            "of all tokens, and each rank has some positions of every sequence only: use capacity=None, or cp=1"
        )
    if moe.capacity is not None and moe.drop == "probability" and ep < config.dp:
        raise RefusedError(
            f"HybridConfig(dp={config.dp}, ep={ep}) with MoEConfig(drop='probability'): an expert compares the tokens "
            f"of the {ep} ranks that share experts, and there are {config.dp}: use ep={config.dp}, or drop='position'"
        )


def _fit(n: int) -> str:
    return "one of " + ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
