"""Gradients of models, assignments and logits in the vote form. Axes as in `votes_types.py`.

`dsums` are `SumGrads`, `dlogits` are `LogitGradSums`; `docs/algorithm.md` derives the gradients.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from . import votes_tile as tile
from .numerics import mul_without_fma, sample_range


@triton.jit
def models_bwd(args, split, models, dsums, dlogits, grads, t, pid_b, pid_m, T: tl.constexpr):
    """Compute gradients of a tile of outputs' sums from those of their `a, mu, sig2`."""
    SIZE: tl.constexpr = T.C * T.H
    o_j = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M)
    m_j = o_j < args.j
    here = tile.offset_model(args, t, pid_b) + o_j
    last = t == args.n_iters - 1
    m_last = o_j < tl.where(last, args.j, 0)
    o_out = tl.cast(pid_b, tl.int64) * args.j + o_j
    stride = tl.cast(args.b, tl.int64) * args.j
    n_slots = tl.where(last, 0, split.slots)
    b_dlog = tile.sum_slots(dlogits.log, n_slots, stride, o_out, m_j, T.BLOCK_S)
    b_a = tl.load(models.a + here, mask=m_j, other=0.0)
    b_da = tl.load(grads.a + o_out, mask=m_last, other=0.0) + b_dlog * tile.sigmoid_float64(-b_a)
    b_D = tl.load(models.D_use + here, mask=m_j, other=0.0)
    b_D_eps = b_D + T.EPS
    o_c, o_h, m_v = tile.offset_components(T)
    o_v, m_v = (o_c * T.H + o_h)[None, :], m_j[:, None] & m_v[None, :]
    o_mu, o_E = here[:, None] * SIZE + o_v, o_out[:, None] * SIZE + o_v
    b_dmu = 2.0 * tile.sum_slots(dlogits.E, n_slots, stride * SIZE, o_E, m_v, T.BLOCK_S)
    b_dsig2 = tl.load(grads.sig2 + o_E, mask=m_v & m_last[:, None], other=0.0).to(tl.float64)
    if T.GAUSSIAN:
        b_p = tl.load(models.p + o_mu, mask=m_v, other=0.5).to(tl.float64)
        b_lEE = tile.sum_slots(dlogits.EE, n_slots, stride * SIZE, o_E, m_v, T.BLOCK_S)
        b_dsig2 += (2.0 * b_p * b_lEE - b_dlog[:, None]) * b_p
        b_dmu *= b_p
    b_dmu_out = tl.load(grads.mu + o_E, mask=m_v & m_last[:, None], other=0.0).to(tl.float64)
    b_dEE = (b_dsig2 / b_D_eps[:, None]).to(tl.float32).to(tl.float64)  # rounded as passes over inputs read it
    b_skew = 2.0 * tl.load(models.D_E + o_mu, mask=m_v, other=0.0) * b_dEE
    b_dE = (b_dmu + b_dmu_out - b_skew) / b_D_eps[:, None]
    b_dD = -tl.sum(mul_without_fma(b_dEE, tl.load(models.D_EE + o_mu, mask=m_v, other=0.0)), 1) / b_D_eps
    tl.store(dsums.D_E + o_mu, b_dE.to(tl.float32), mask=m_v)
    tl.store(dsums.D_EE + o_mu, b_dEE.to(tl.float32), mask=m_v)
    if not T.B_K:  # B shifts mu, but for eps: equals the sum of dV without its cancellation
        b_dB = (b_dmu_out * b_D[:, None] - T.EPS * (b_dmu - b_skew)) / b_D_eps[:, None]
        tl.store(dsums.B + o_mu, b_dB, mask=m_v)
    if not T.BETAS_K:
        b_use = tl.load(args.use + (o_j if T.USE_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        b_dD += b_da * (b_use + tl.load(args.ign + (o_j if T.IGN_J else o_j * 0), mask=m_j, other=0.0))
    tl.store(dsums.a + here, b_da.to(tl.float32), mask=m_j)
    b_dD, b_dD_lo = tile.split_float64(b_dD)
    tl.store(dsums.D + here, b_dD, mask=m_j)
    tl.store(dsums.D_lo + here, b_dD_lo, mask=m_j)
    tl.store(dsums.use + here, b_da * b_D, mask=m_j)
    tl.store(dsums.ign + here, -b_da * tl.load(models.D_ign + here, mask=m_j, other=0.0), mask=m_j)


@triton.jit
def D_use_bwd(args, models, dsums, here, rows, cols, b_V, T: tl.constexpr):
    """Compute gradients of D_use `[I, J]`."""
    # the term all inputs share is added last and in two parts: its rounding would not cancel in sums over inputs
    b_dD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + tile.load_outputs(dsums.D_lo, here, cols, 0.0)[None, :]
    if T.BETAS_K:
        b_use, b_ign = tile.load_betas(args, rows, cols, T)
        b_dD += tile.load_outputs(dsums.a, here, cols, 0.0)[None, :] * (b_use + b_ign)
    b_E = b_V - tile.load_components(models.mu, here, cols, T)[None, :, :]
    b_dE = tile.load_components(dsums.D_E, here, cols, T)[None, :, :]
    b_dEE = tile.load_components(dsums.D_EE, here, cols, T)[None, :, :]
    b_dD += tl.sum(mul_without_fma(b_dE + b_dEE * b_E, b_E), 1)
    return b_dD + tile.load_outputs(dsums.D, here, cols, 0.0)[None, :]


@triton.jit
def logits_bwd(args, dsums, t, rows, b_R, b_dD, T: tl.constexpr):
    """Compute gradients of logits `[I, J]`."""
    if T.SPLIT_J:
        b_R_dD = tl.load(dsums.R_dD + tl.cast(t, tl.int64) * args.n + rows.o_n, mask=rows.m_i, other=0.0)
        b_dD -= b_R_dD[:, None]
    else:
        if T.FLOAT64_GRADS:  # where outputs have equal votes, gradients of capsules are small differences over outputs
            b_R, b_dD = b_R.to(tl.float64), b_dD.to(tl.float64)
        # twice: the rounding of what all outputs share would add up over inputs
        for _ in range(2):
            b_dD -= tl.sum(mul_without_fma(b_R, b_dD), 1)[:, None]
    return rows.f[:, None] * b_R * b_dD


@triton.jit
def store_logit_sums(args, dlogits, pid_s, pid_b, cols, b_dlog, b_lE, b_lEE, T: tl.constexpr):
    """Store sums over a slot's inputs of gradients of logits, alone, times distances, and times their squares."""
    row = tile.offset_model(args, pid_s, pid_b) + cols.start
    o_E, m_E = tile.offset_votes(cols, T)
    o_E += row * (T.C * T.H)
    tl.store(dlogits.log + row + cols.o_j, tl.sum(b_dlog.to(tl.float64), 0), mask=cols.m_j)
    tl.store(dlogits.E + o_E, tl.sum(b_lE.to(tl.float64), 0), mask=m_E)
    tl.store(dlogits.EE + o_E, tl.sum(b_lEE.to(tl.float64), 0), mask=m_E)


@triton.jit
def sum_R_dD(args, split, models, dsums, dlogits, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """Store `sum_j R dD_use` of a tile's inputs over a slice of outputs."""
    start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
    rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
    here, before = tile.offset_model(args, t, pid_b), tile.offset_model(args, t - 1, pid_b)
    b_R_dD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, split.j_tiles, 0), split.slices):
        cols = tile.load_output_tile(args, pid_j, T)
        model = tile.load_model(models, before, cols, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_dD = D_use_bwd(args, models, dsums, here, rows, cols, b_V, T)
        b_R_dD += tile.compute_R(args, models, model, t, rows, b_V, T) * b_dD
    b_R_dD = tl.sum(b_R_dD.to(tl.float64), 1)
    tl.store(dlogits.R_dD + tl.cast(pid_s, tl.int64) * args.n + rows.o_n, b_R_dD, mask=rows.m_i)


@triton.jit
def merge_R_dD(args, split, dsums, dlogits, t, pid, n_pids):
    """Sum `sum_j R dD_use` over all slices."""
    for unit in range(pid, tl.cdiv(args.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        b_R_dD = tile.sum_slots(dlogits.R_dD, split.slices, args.n, o_n, o_n < args.n, 1)
        tl.store(dsums.R_dD + tl.cast(t, tl.int64) * args.n + o_n, b_R_dD.to(tl.float32), mask=o_n < args.n)


@triton.jit
def sum_inputs_bwd(args, split, models, dsums, dlogits, t, pid_b, pid_s, pid_j, T: tl.constexpr):
    """Store the sums of a tile of outputs' gradients of logits over the inputs of a slot."""
    DTYPE: tl.constexpr = tl.float64 if T.FLOAT64_GRADS else tl.float32
    start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
    cols = tile.load_output_tile(args, pid_j, T)
    here = tile.offset_model(args, t, pid_b)
    model = tile.load_model(models, tile.offset_model(args, t - 1, pid_b), cols, T)
    b_dlog = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, DTYPE)
    b_lE = tl.full([T.BLOCK_I, T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, DTYPE)
    b_lEE = tl.zeros_like(b_lE)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), split.slots):
        rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_dD = D_use_bwd(args, models, dsums, here, rows, cols, b_V, T)
        b_dl = logits_bwd(args, dsums, t, rows, tile.compute_R(args, models, model, t, rows, b_V, T), b_dD, T)
        b_dlog += b_dl
        b_E = b_V - model.mu[None, :, :]
        b_lxE = b_dl[:, None, :] * b_E
        b_lE += b_lxE
        b_lEE += b_lxE * b_E
    store_logit_sums(args, dlogits, pid_s, pid_b, cols, b_dlog, b_lE, b_lEE, T)
