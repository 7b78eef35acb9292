"""Backward kernel of the product form: from the last iteration to the first, with votes and shares formed again.

Axes as in `products_tile.py`; `docs/algorithm.md` derives the gradients. Iterations first hand sums over inputs to the
one before; when all have, one pass takes every iteration's part of the votes' gradients, which no memory ever holds.
"""

# pyright: reportAssignmentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import triton
import triton.language as tl

from . import products_tile as tile
from .grid import wait_for_all
from .numerics import MAX_CAPSULE, dot_halves, mul_without_fma, sample_range, split_halves, sum_slots
from .products_tile import Counts


@triton.jit
def models_bwd(args, size, models, work, douts, t, pid_b, pid_m, T: tl.constexpr):
    """Compute gradients of a tile of outputs' sums from those of their `a, mu, sig2`."""
    o_j, m_j, here, o_out, m_h, o_mu, o_E = tile.locate_models(size, t, pid_b, pid_m, T)
    last, stride = t == size.n_iters - 1, tl.cast(size.b, tl.int64) * size.j
    m_last = m_j & last
    n_slots = tl.where(last, 0, size.slots)
    b_dlog = sum_slots(work.dlog, n_slots, stride, o_out, m_j, T.BLOCK_S)
    b_a = tl.load(models.a + here, mask=m_j, other=0.0)
    b_da = tl.load(douts.a + o_out, mask=m_last, other=0.0) + b_dlog * tile.sigmoid_float64(-b_a)
    b_D = tl.load(models.D_use + here, mask=m_j, other=0.0)
    b_D_eps = b_D + T.EPS
    b_dmu = 2.0 * sum_slots(work.dlog_E, n_slots, stride * T.H, o_E, m_h, T.BLOCK_S)
    b_dsig2 = tl.load(douts.sig2 + o_E, mask=m_h & m_last[:, None], other=0.0).to(tl.float64)
    if T.GAUSSIAN:
        b_p = tl.load(models.p + o_mu, mask=m_h, other=0.5).to(tl.float64)
        b_lEE = sum_slots(work.dlog_EE, n_slots, stride * T.H, o_E, m_h, T.BLOCK_S)
        b_dsig2 += (2.0 * b_p * b_lEE - b_dlog[:, None]) * b_p
        b_dmu *= b_p
    b_dmu_out = tl.load(douts.mu + o_E, mask=m_h & m_last[:, None], other=0.0).to(tl.float64)
    b_dEE = (b_dsig2 / b_D_eps[:, None]).to(tl.float32).to(tl.float64)  # rounded as passes over inputs read it
    b_skew = 2.0 * tl.load(models.D_E + o_mu, mask=m_h, other=0.0) * b_dEE
    tl.store(work.dD_E + o_mu, ((b_dmu + b_dmu_out - b_skew) / b_D_eps[:, None]).to(tl.float32), mask=m_h)
    tl.store(work.dD_EE + o_mu, b_dEE.to(tl.float32), mask=m_h)
    # B shifts mu, but for eps: equals the sum of dV without its cancellation
    b_dB = (b_dmu_out * b_D[:, None] - T.EPS * (b_dmu - b_skew)) / b_D_eps[:, None]
    tl.store(work.dB + o_mu, b_dB, mask=m_h)
    b_betas = tl.load(args.use + o_j * T.USE_J, mask=m_j, other=0.0).to(tl.float64)
    b_betas += tl.load(args.ign + o_j * T.IGN_J, mask=m_j, other=0.0)
    b_D_EE = tl.load(models.D_EE + o_mu, mask=m_h, other=0.0)
    b_dD, b_dD_lo = tile.split_float64(b_da * b_betas - tl.sum(mul_without_fma(b_dEE, b_D_EE), 1) / b_D_eps)
    tl.store(work.da + here, b_da.to(tl.float32), mask=m_j)
    tl.store(work.dD + here, b_dD, mask=m_j)
    tl.store(work.dD_lo + here, b_dD_lo, mask=m_j)
    tl.store(work.duse + here, b_da * b_D, mask=m_j)
    tl.store(work.dign + here, -b_da * tl.load(models.D_ign + here, mask=m_j, other=0.0), mask=m_j)


@triton.jit
def D_use_bwd(models, work, here, cols, b_V, T: tl.constexpr):
    """Compute gradients of D_use `[I, J]`; return the distances and the coefficients that they follow from too."""
    # the term all inputs share is added last and in two parts: its rounding would not cancel in sums over inputs
    b_E = b_V - tile.load_components(models.mu, here, cols, T)[None, :, :]
    b_dE = tile.load_components(work.dD_E, here, cols, T)[None, :, :]
    b_dEE = tile.load_components(work.dD_EE, here, cols, T)[None, :, :]
    b_dD = tl.sum(mul_without_fma(b_dE + b_dEE * b_E, b_E), 1) + tile.load_outputs(work.dD_lo, here, cols, 0.0)[None, :]
    return b_dD + tile.load_outputs(work.dD, here, cols, 0.0)[None, :], b_E, b_dE, b_dEE


@triton.jit
def logits_bwd(size, work, t, rows, b_R, b_dD, T: tl.constexpr):
    """Compute gradients of logits `[I, J]`."""
    if T.SPLIT_J:
        o_t = tl.cast(t, tl.int64) * size.n + rows.o_n
        b_dD -= tl.load(work.R_dD + o_t, mask=rows.m_i, other=0.0)[:, None]
    else:
        # twice: the rounding of what all outputs share would add up over inputs
        for _ in tl.static_range(2):
            b_dD -= tl.sum(mul_without_fma(b_R, b_dD), 1)[:, None]
    return rows.f[:, None] * b_R * b_dD


@triton.jit
def sum_R_dD(args, size, models, work, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """Store `sum_j R dD_use` of a tile's inputs over a slice of outputs."""
    start, n_inp = sample_range(args.offsets, pid_b, size.i, T.PACKED)
    rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
    here, before = tile.offset_model(size, t, pid_b), tile.offset_model(size, t - 1, pid_b)
    b_R_dD = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, size.j_tiles, 0), size.slices):
        cols = tile.load_output_tile(args, size, pid_j, T)
        model = tile.load_model(models, before, cols, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_dD, _, _, _ = D_use_bwd(models, work, here, cols, b_V, T)
        b_R_dD += tile.compute_R(size, models, model, t, rows, b_V, T) * b_dD
    o_n = tl.cast(pid_s, tl.int64) * size.n + rows.o_n
    tl.store(work.slice_R_dD + o_n, tl.sum(b_R_dD.to(tl.float64), 1), mask=rows.m_i)


@triton.jit
def merge_R_dD(size, work, t, pid, n_pids):
    """Sum `sum_j R dD_use` over all slices."""
    for unit in range(pid, tl.cdiv(size.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        b_R_dD = sum_slots(work.slice_R_dD, size.slices, size.n, o_n, o_n < size.n, 1)
        tl.store(work.R_dD + tl.cast(t, tl.int64) * size.n + o_n, b_R_dD.to(tl.float32), mask=o_n < size.n)


@triton.jit
def sum_inputs_bwd(args, size, models, work, t, pid_b, pid_s, pid_j, T: tl.constexpr):
    """Store the sums of a tile of outputs' gradients of logits over the inputs of a slot."""
    start, n_inp = sample_range(args.offsets, pid_b, size.i, T.PACKED)
    cols = tile.load_output_tile(args, size, pid_j, T)
    here = tile.offset_model(size, t, pid_b)
    model = tile.load_model(models, tile.offset_model(size, t - 1, pid_b), cols, T)
    b_dlog = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_lE = tl.full([T.BLOCK_I, T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_lEE = tl.full([T.BLOCK_I, T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), size.slots):
        rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_dD, _, _, _ = D_use_bwd(models, work, here, cols, b_V, T)
        b_R = tile.compute_R(size, models, model, t, rows, b_V, T)
        b_dl = logits_bwd(size, work, t, rows, b_R, b_dD, T)
        b_dlog += b_dl
        b_lE, b_lEE = tile.add_distances(b_dl, b_V - model.mu[None, :, :], b_lE, b_lEE)
    row = tile.offset_model(size, pid_s, pid_b) + cols.start
    o_E, m_E = tile.offset_components(cols, T)
    o_E += row * T.H
    tl.store(work.dlog + row + cols.o_j, tl.sum(b_dlog.to(tl.float64), 0), mask=cols.m_j)
    tl.store(work.dlog_E + o_E, tl.sum(b_lE.to(tl.float64), 0), mask=m_E)
    tl.store(work.dlog_EE + o_E, tl.sum(b_lEE.to(tl.float64), 0), mask=m_E)


@triton.jit
def iteration_bwd(
    args, size, models, work, t, pid_b, rows, cols, b_V, b_dV, b_df, FIRST: tl.constexpr, T: tl.constexpr
):
    """Add an iteration's part to the gradients of a tile's votes `[I, H, J]` and of f(a_inp), the latter `[I, J]`."""
    here, before = tile.offset_model(size, t, pid_b), tile.offset_model(size, t - 1, pid_b)
    b_dD, b_E, b_dE, b_dEE = D_use_bwd(models, work, here, cols, b_V, T)
    if FIRST:
        b_R = tl.where(cols.m_j[None, :], 1.0 / size.j, 0.0)
    else:
        model = tile.load_model(models, before, cols, T)
        b_R = tile.compute_R(size, models, model, t, rows, b_V, T)
        b_dl = logits_bwd(size, work, t, rows, b_R, b_dD, T)
    b_ign = tl.load(args.ign + (cols.start + cols.o_j) * T.IGN_J, mask=cols.m_j, other=0.0)
    b_df += b_R * b_dD - (tile.load_outputs(work.da, here, cols, 0.0) * b_ign)[None, :]
    b_new = (rows.f[:, None] * b_R)[:, None, :] * (b_dE + 2.0 * b_dEE * b_E)
    if not FIRST:
        b_new -= (b_dl[:, None, :] * (b_V - model.mu[None, :, :])) * (2.0 * model.p)[None, :, :]
    return b_dV + b_new, b_df


@triton.jit
def store_da(args, grads, o_n, m_n, b_df):
    """Store gradients of scores, from those of f(a_inp)."""
    b_f = tile.sigmoid_float64(tl.load(args.a + o_n, mask=m_n, other=0.0))
    b_da = b_df.to(tl.float64) * b_f * (1.0 - b_f)
    tl.store(grads.a + o_n, b_da.to(tl.float32).to(grads.a.dtype.element_ty), mask=m_n)


@triton.jit
def store_dx(args, grads, o_x, m_x, b_dx):
    """Store gradients of capsules, zero where these are clamped."""
    b_x = tl.load(args.x + o_x, mask=m_x, other=0.0).to(tl.float32)
    tl.store(grads.x + o_x, tl.where(tl.abs(b_x) <= MAX_CAPSULE, b_dx, 0.0).to(grads.x.dtype.element_ty), mask=m_x)


@triton.jit
def put_df(args, size, work, grads, pid_x, old, rows, b_df, T: tl.constexpr):
    """Store gradients of scores, or if SPLIT_J those of f(a_inp) in a slice, added to old ones if there are any."""
    if T.SPLIT_J:
        p_df = work.df + tl.cast(pid_x, tl.int64) * size.n + rows.o_n
        tl.store(p_df, b_df + tl.load(p_df, mask=rows.m_i & old, other=0.0), mask=rows.m_i)
    else:
        store_da(args, grads, rows.o_n, rows.m_i, b_df)


@triton.jit
def put_dx(args, size, work, grads, pid_x, old, rows, cols, b_dV, T: tl.constexpr):
    """Store gradients of capsules, or if SPLIT_J of a slice."""
    b_dV *= cols.scale[None, :, :]
    b_scale, b_inverse = tile.compute_scale(tl.max(tl.max(tl.abs(b_dV), 1), 1))
    b_hi, b_lo = split_halves(tl.reshape(b_dV * b_inverse[:, None, None], [T.BLOCK_I, T.BLOCK_H * T.BLOCK_J]))
    o_d = tl.arange(0, T.BLOCK_D)
    o_x, m_x = rows.o_n[:, None] * T.D + o_d[None, :], rows.m_i[:, None] & (o_d < T.D)[None, :]
    p_dx = work.dx + tl.cast(pid_x, tl.int64) * size.n * T.D + o_x
    b_old = tl.load(p_dx, mask=m_x & old, other=0.0) if T.SPLIT_J else 0  # before the product, not to wait after it
    b_dx = dot_halves(b_hi, b_lo, cols.W[0], cols.W[1], tl.full([T.BLOCK_I, T.BLOCK_D], 0.0, tl.float32))
    if T.SPLIT_J:
        tl.store(p_dx, b_old + b_dx * b_scale[:, None], mask=m_x)
    else:
        store_dx(args, grads, o_x, m_x, b_dx * b_scale[:, None])


@triton.jit
def add_W(rows, b_dV, b_dW, T: tl.constexpr):
    """Add a tile's part to the gradients of weights `[H J, D]`."""
    b_dV *= rows.scale[:, None, None]
    b_scale, b_inverse = tile.compute_scale(tl.max(tl.abs(b_dV), 0))
    b_hi, b_lo = split_halves(tl.reshape(b_dV * b_inverse[None, :, :], [T.BLOCK_I, T.BLOCK_H * T.BLOCK_J]))
    b_new = tl.full([T.BLOCK_H * T.BLOCK_J, T.BLOCK_D], 0.0, tl.float32)
    b_new = dot_halves(tl.trans(b_hi), tl.trans(b_lo), rows.x[0], rows.x[1], b_new)
    return b_dW + b_new * tl.reshape(b_scale, [T.BLOCK_H * T.BLOCK_J, 1])


@triton.jit
def unit_bwd(args, size, models, work, grads, unit, T: tl.constexpr):
    """Run the last pass over votes for a group of samples, a slot of inputs and a slice of outputs."""
    pid_x = unit % size.grad_slices
    pid_s = unit // size.grad_slices % size.grad_slots
    pid_g = unit // size.grad_slices // size.grad_slots
    p_W = work.dW + (pid_g * size.grad_slots + pid_s) * tl.cast(size.j, tl.int64) * (T.D * T.H)
    for pid_j in range(pid_x, size.j_tiles, size.grad_slices):
        cols = tile.load_output_tile(args, size, pid_j, T)
        b_dW = tl.full([T.BLOCK_H * T.BLOCK_J, T.BLOCK_D], 0.0, tl.float32)
        for pid_b in range(pid_g, size.b, size.groups):
            start, n_inp = sample_range(args.offsets, pid_b, size.i, T.PACKED)
            for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), size.grad_slots):
                rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
                b_V = tile.compute_votes(args, rows, cols, T)
                b_dV = tl.full([T.BLOCK_I, T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
                b_df = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
                b_dV, b_df = iteration_bwd(args, size, models, work, 0, pid_b, rows, cols, b_V, b_dV, b_df, True, T)
                for t in range(1, size.n_iters):
                    b_dV, b_df = iteration_bwd(
                        args, size, models, work, t, pid_b, rows, cols, b_V, b_dV, b_df, False, T
                    )
                put_df(args, size, work, grads, pid_x, pid_j > pid_x, rows, tl.sum(b_df, 1), T)
                put_dx(args, size, work, grads, pid_x, pid_j > pid_x, rows, cols, b_dV, T)
                b_dW = add_W(rows, b_dV, b_dW, T)
        row, m_row = tile.offset_weights(size, pid_j, T)
        o_d = tl.arange(0, T.BLOCK_D)
        tl.store(p_W + row[:, None] * T.D + o_d[None, :], b_dW, mask=m_row[:, None] & (o_d < T.D)[None, :])


@triton.jit
def reduce(p_d, p_parts, n_parts, n, first, n_pids, n_out, D: tl.constexpr, H: tl.constexpr, T: tl.constexpr):
    """Sum `n` gradients over parts; parts of parameters `[j, d, h]` are `[h, j, d]`."""
    BLOCK: tl.constexpr = 256 if T.SPLIT_J else 64
    SLOTS: tl.constexpr = 8 if T.SPLIT_J else 32
    for unit in range(first % n_pids, tl.cdiv(n, BLOCK), n_pids):
        o = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        o_part = (o % H * n_out + o // (D * H)) * D + o // H % D
        tl.store(p_d + o, sum_slots(p_parts, n_parts, n, o_part, o < n, SLOTS).to(tl.float32), mask=o < n)


@triton.jit
def reduce_inputs(args, size, work, grads, pid, n_pids, T: tl.constexpr):
    """Compute gradients of scores and capsules from those of all slices."""
    BLOCK: tl.constexpr = 256
    n_x = tl.cast(size.n, tl.int64) * T.D
    for unit in range(pid, tl.cdiv(n_x, BLOCK), n_pids):
        o_x = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        b_dx = sum_slots(work.dx, size.grad_slices, n_x, o_x, o_x < n_x, 8)
        store_dx(args, grads, o_x, o_x < n_x, b_dx.to(tl.float32))
    for unit in range(pid, tl.cdiv(size.n, BLOCK), n_pids):
        o_n = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        b_df = sum_slots(work.df, size.grad_slices, size.n, o_n, o_n < size.n, 8)
        store_da(args, grads, o_n, o_n < size.n, b_df)


@triton.jit(do_not_specialize=("first", "last", *Counts._fields))
def products_bwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, groups, grad_slots, grad_slices, args,
    models, work, douts, grads, T: tl.constexpr,
):  # fmt: skip
    """Run phases: in each iteration but the first gradients of models, then sums over inputs; then all gradients."""
    size = Counts(n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, groups, grad_slots, grad_slices)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        end = phase - STEPS * (n_iters - 1)
        t, step = tl.maximum(n_iters - 1 - phase // STEPS, 0), phase % STEPS
        if phase == 0:
            tile.prepare(args, size, pid, n_pids, T)
        if (step == 0) & (end <= 0):
            n_blocks = tl.cdiv(j, T.BLOCK_M)
            for unit in range(pid, b * n_blocks, n_pids):
                models_bwd(args, size, models, work, douts, t, unit // n_blocks, unit % n_blocks, T)
        if T.SPLIT_J:
            if (step == 1) & (end < 0):
                for unit in range(pid, b * i_tiles * slices, n_pids):
                    pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                    sum_R_dD(args, size, models, work, t, pid_b, pid_i, unit % slices, T)
            if (step == 2) & (end < 0):
                merge_R_dD(size, work, t, pid, n_pids)
        if (step == STEPS - 1) & (end < 0):
            for unit in range(pid, b * slots * j_tiles, n_pids):
                pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                sum_inputs_bwd(args, size, models, work, t, pid_b, pid_s, pid_j, T)
        if end == 1:
            for unit in range(pid, groups * grad_slots * grad_slices, n_pids):
                unit_bwd(args, size, models, work, grads, unit, T)
        if end == 2:
            if T.SPLIT_J:
                reduce_inputs(args, size, work, grads, pid, n_pids, T)
            # different programs begin with each parameter
            n_parts, n_models, n_out = groups * grad_slots, n_iters * b, tl.cast(j, tl.int64)
            reduce(grads.W, work.dW, n_parts, n_out * (T.D * T.H), pid, n_pids, n_out, T.D, T.H, T)
            reduce(grads.B, work.dB, n_models, n_out * T.H, pid + n_pids // 4, n_pids, 0, 1, 1, T)
            reduce(grads.use, work.duse, n_models, n_out, pid + n_pids // 2, n_pids, 0, 1, 1, T)
            reduce(grads.ign, work.dign, n_models, n_out, pid + n_pids * 3 // 4, n_pids, 0, 1, 1, T)
