"""Forward kernel of the vote form. Axes as in `votes_tile.py`."""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .grid import wait_for_all
from .votes_tile import (
    FLOOR,
    LOWEST,
    add_to,
    chunk,
    clear,
    columns,
    load_betas,
    load_lse,
    load_model,
    load_precisions,
    model_row,
    powers,
    rows,
    span,
    to_logits,
    total,
    votes,
)

LOG_2_PI = tl.constexpr(1.8378770664093453)


class Sums(NamedTuple):
    """Over the inputs of a slot, in float64; distances `E` are counted from the means of the iteration before."""

    D_use: Any  # [slots, b, j]
    D_ign: Any  # [slots, b, j]
    a: Any  # [slots, b, j]
    D_E: Any  # [slots, b, j, v]
    D_EE: Any  # [slots, b, j, v]


class Outs(NamedTuple):
    """The last iteration's model."""

    a: Any  # [b, j]
    mu: Any  # [b, j, v]
    sig2: Any  # [b, j, v]


@triton.jit
def e_step(inp, layer, models, o_i, o_n, m_i, pid_j, row, b_V, T: tl.constexpr):
    """Logits `[I, J]`; takes the votes where one chunk holds them all."""
    o_j, m_j = columns(inp, pid_j, T)
    far = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_v in range(T.CHUNKS):
        b_E = b_V if T.CHUNKS == 1 else votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T)
        b_E -= load_model(models.mu, row, o_j, m_j, pid_v, 0.0, T)[None, :, :]
        far += tl.sum(b_E * b_E * load_precisions(models, row, o_j, m_j, pid_v, T)[None, :, :], 2)
    return to_logits(inp, models, row, far, o_j, m_j)


@triton.jit
def normalise(inp, layer, models, t, pid_b, pid_i, pid_s, n_tiles, T: tl.constexpr):
    """A slice's part of the normalisers of a tile's inputs, over tiles of outputs."""
    start, n_inp = span(inp, pid_b, T)
    o_i, o_n, m_i, _f = rows(inp, start, n_inp, pid_i, T)
    row = model_row(inp, t - 1, pid_b)
    b_top = tl.full([T.BLOCK_I], LOWEST, tl.float64)
    b_sum = tl.full([T.BLOCK_I], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, n_tiles, 0), T.SLICES):
        m_j = columns(inp, pid_j, T)[1]
        b_V = votes(inp, layer, o_i, o_n, m_i, pid_j, 0, T) if T.CHUNKS == 1 else 0
        logits = e_step(inp, layer, models, o_i, o_n, m_i, pid_j, row, b_V, T)
        new = tl.maximum(b_top, tl.max(logits, 1))
        b_sum *= tl.exp(tl.maximum((b_top - new).to(tl.float32), FLOOR))
        b_sum += tl.sum(powers(logits, new, m_j), 1)
        b_top = new
    p_lse = models.lse + (tl.cast(t, tl.int64) * T.SLICES + pid_s) * inp.n + o_n
    tl.store(p_lse, b_top + tl.log(tl.where(m_i, b_sum, 1.0).to(tl.float64)), mask=m_i)


@triton.jit
def shares(inp, layer, models, t, pid_b, o_i, o_n, m_i, b_f, pid_j, b_V, T: tl.constexpr):
    """E- and D-step of a tile: D_use and D_ign, `[I, J]` each, in float64."""
    m_j = columns(inp, pid_j, T)[1]
    b_R = tl.where(m_j[None, :], tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + 1.0 / inp.j, 0.0)
    if t > 0:
        logits = e_step(inp, layer, models, o_i, o_n, m_i, pid_j, model_row(inp, t - 1, pid_b), b_V, T)
        if T.WIDE:
            b_lse = load_lse(inp, models, t, o_n, m_i, T)
        else:
            b_top = tl.max(logits, 1)
            b_lse = b_top + tl.log(tl.sum(powers(logits, b_top, m_j), 1).to(tl.float64))
            tl.store(models.lse + tl.cast(t, tl.int64) * inp.n + o_n, b_lse, mask=m_i)
        b_R = powers(logits, b_lse, m_j)
    b_use = (b_f[:, None] * b_R).to(tl.float64)
    return b_use, tl.where(m_j[None, :], b_f.to(tl.float64)[:, None] - b_use, 0.0)


@triton.jit
def gain(inp, layer, models, sums, t, pid_b, pid_s, n_slots, pid_j, T: tl.constexpr):
    """A tile of outputs' sums over the inputs of a slot."""
    start, n_inp = span(inp, pid_b, T)
    o_j, m_j = columns(inp, pid_j, T)
    m_before = o_j < tl.where(t > 0, inp.j, 0)
    before = model_row(inp, t - 1, pid_b)
    o_sum = model_row(inp, pid_s, pid_b) + o_j
    b_use = tl.full([T.BLOCK_J], 0.0, tl.float64)
    b_ign = tl.full([T.BLOCK_J], 0.0, tl.float64)
    b_a = tl.full([T.BLOCK_J], 0.0, tl.float64)
    b_DE = tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float64)
    b_DEE = tl.full([T.BLOCK_J, T.BLOCK_C * T.BLOCK_H], 0.0, tl.float64)
    if T.CHUNKS > 1:
        clear(sums.D_E, o_sum, m_j, T)
        clear(sums.D_EE, o_sum, m_j, T)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), n_slots):
        o_i, o_n, m_i, b_f = rows(inp, start, n_inp, pid_i, T)
        b_V = votes(inp, layer, o_i, o_n, m_i, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_D, b_rest = shares(inp, layer, models, t, pid_b, o_i, o_n, m_i, b_f, pid_j, b_V, T)
        b_gain, b_cost = load_betas(inp, layer, o_i, m_i, o_j, m_j, T)
        b_use += tl.sum(b_D, 0)
        b_ign += tl.sum(b_rest, 0)
        b_a += tl.sum(b_gain.to(tl.float64) * b_D - b_cost.to(tl.float64) * b_rest, 0)
        for pid_v in range(T.CHUNKS):
            b_E = b_V if T.CHUNKS == 1 else votes(inp, layer, o_i, o_n, m_i, pid_j, pid_v, T)
            b_E = (b_E - load_model(models.mu, before, o_j, m_before, pid_v, 0.0, T)[None, :, :]).to(tl.float64)
            b_DxE = b_D[:, :, None] * b_E
            if T.CHUNKS == 1:
                b_DE += tl.sum(b_DxE, 0)
                b_DEE += tl.sum(b_DxE * b_E, 0)
            else:
                o_E, m_E = chunk(o_sum, m_j, pid_v, T)
                add_to(sums.D_E + o_E, tl.sum(b_DxE, 0), m_E)
                add_to(sums.D_EE + o_E, tl.sum(b_DxE * b_E, 0), m_E)
    tl.store(sums.D_use + o_sum, b_use, mask=m_j)
    tl.store(sums.D_ign + o_sum, b_ign, mask=m_j)
    tl.store(sums.a + o_sum, b_a, mask=m_j)
    if T.CHUNKS == 1:
        o_E, m_E = chunk(o_sum, m_j, 0, T)
        tl.store(sums.D_E + o_E, b_DE, mask=m_E)
        tl.store(sums.D_EE + o_E, b_DEE, mask=m_E)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def m_step(inp, cut, sums, models, outs, t, pid_b, pid_m, T: tl.constexpr):
    """A sample's models of some outputs, from the sums of all slots."""
    SIZE: tl.constexpr = T.C * T.H
    o_j = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M)
    m_j = o_j < inp.j
    here = model_row(inp, t, pid_b) + o_j
    m_last = o_j < tl.where(t == inp.n_iters - 1, inp.j, 0)
    m_before = o_j < tl.where(t > 0, inp.j, 0)
    o_out = tl.cast(pid_b, tl.int64) * inp.j + o_j
    stride = tl.cast(inp.b, tl.int64) * inp.j
    b_D = total(sums.D_use, cut.slots, stride, o_out, m_j, T.BLOCK_S)
    b_a = total(sums.a, cut.slots, stride, o_out, m_j, T.BLOCK_S)
    b_used = b_D + T.EPS
    b_log = log_sigmoid(b_a)
    tl.store(models.D_use + here, b_D, mask=m_j)
    tl.store(models.D_ign + here, total(sums.D_ign, cut.slots, stride, o_out, m_j, T.BLOCK_S), mask=m_j)
    tl.store(models.a + here, b_a.to(tl.float32), mask=m_j)
    tl.store(outs.a + o_out, b_a.to(tl.float32), mask=m_last)
    for v in range(0, SIZE, T.BLOCK_V):
        o_v = v + tl.arange(0, T.BLOCK_V)
        m_v = m_j[:, None] & (o_v < SIZE)[None, :]
        o_mu = here[:, None] * SIZE + o_v[None, :]
        o_E = o_out[:, None] * SIZE + o_v[None, :]
        flat, m_flat = tl.reshape(o_E, [T.BLOCK_M * T.BLOCK_V]), tl.reshape(m_v, [T.BLOCK_M * T.BLOCK_V])
        b_DE = total(sums.D_E, cut.slots, stride * SIZE, flat, m_flat, T.BLOCK_S)
        b_DEE = total(sums.D_EE, cut.slots, stride * SIZE, flat, m_flat, T.BLOCK_S)
        b_DE, b_DEE = tl.reshape(b_DE, [T.BLOCK_M, T.BLOCK_V]), tl.reshape(b_DEE, [T.BLOCK_M, T.BLOCK_V])
        b_old = tl.load(models.mu + o_mu - stride * SIZE, mask=m_v & m_before[:, None], other=0.0).to(tl.float64)
        b_mu = ((b_DE + b_old * b_D[:, None]) / b_used[:, None]).to(tl.float32)
        b_move = b_mu.to(tl.float64) - b_old
        b_DEE = tl.maximum(b_DEE - 2.0 * b_move * b_DE + b_move * b_move * b_D[:, None], 0.0)
        b_sig2 = b_DEE / b_used[:, None] + T.EPS
        tl.store(models.D_E + o_mu, b_DE - b_move * b_D[:, None], mask=m_v)
        tl.store(models.D_EE + o_mu, b_DEE, mask=m_v)
        tl.store(models.mu + o_mu, b_mu, mask=m_v)
        tl.store(models.sig2 + o_mu, b_sig2.to(tl.float32), mask=m_v)
        tl.store(outs.mu + o_E, b_mu, mask=m_v & m_last[:, None])
        tl.store(outs.sig2 + o_E, b_sig2.to(tl.float32), mask=m_v & m_last[:, None])
        if T.GAUSSIAN:
            b_log -= 0.5 * tl.sum(tl.where(m_v, tl.log(b_sig2) + LOG_2_PI, 0.0), 1)
    tl.store(models.log + here, b_log, mask=m_j)


@triton.jit
def votes_fwd_kernel(p_count, first, last, inp, layer, cut, sums, models, outs, T: tl.constexpr):
    """Each iteration: normalisers where outputs are many, then sums over inputs, then models."""
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 3 if T.WIDE else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count, phase - first)
        t = (phase + STEPS - 2) // STEPS
        step = (phase + STEPS - 2) % STEPS + 2 - STEPS
        if T.WIDE:  # noqa: SIM102 (known when compiling)
            if step == -1:
                for unit in range(pid, inp.b * cut.i_tiles * T.SLICES, n_pids):
                    pid_b, pid_i = unit // T.SLICES // cut.i_tiles, unit // T.SLICES % cut.i_tiles
                    normalise(inp, layer, models, t, pid_b, pid_i, unit % T.SLICES, cut.j_tiles, T)
        if step == 0:
            for unit in range(pid, inp.b * cut.slots * cut.slices, n_pids):
                pid_s, pid_b = unit // cut.slices % cut.slots, unit // cut.slices // cut.slots
                for pid_j in range(unit % cut.slices, cut.j_tiles, cut.slices):
                    gain(inp, layer, models, sums, t, pid_b, pid_s, cut.slots, pid_j, T)
        if step == 1:
            n_blocks = tl.cdiv(inp.j, T.BLOCK_M)
            for unit in range(pid, inp.b * n_blocks, n_pids):
                m_step(inp, cut, sums, models, outs, t, unit // n_blocks, unit % n_blocks, T)
