"""Forward kernel of the product form. Axes as in `products_tile.py`."""

# pyright: reportAssignmentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from . import products_tile as tile
from .grid import wait_for_all
from .numerics import LOG_PI, log_sigmoid, max_nan, mul_without_fma, sample_range, sum_slots
from .products_tile import Counts

CENTRE_INPUTS = tl.constexpr(32)
"""Inputs from whose tiles programs choose a centre to measure distances from."""


@triton.jit
def sum_exponentials(args, size, models, sums, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """Store the largest logit and the sum of exponentials of a tile's inputs over a slice of outputs."""
    start, n_inp = sample_range(args.offsets, pid_b, size.i, T.PACKED)
    rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
    before = tile.offset_model(size, t - 1, pid_b)
    b_max = tl.full([T.BLOCK_I], tile.MIN_LOGIT, tl.float32 if T.GAUSSIAN else tl.float64)
    b_sum = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, size.j_tiles, 0), size.slices):
        cols = tile.load_output_tile(args, size, pid_j, T)
        model = tile.load_model(models, before, cols, T)
        b_dist = tile.compute_distances(model, tile.compute_votes(args, rows, cols, T))
        b_new = tl.maximum(b_max, tl.max(tile.compute_logits(b_dist, model, T), 1))
        b_sum = b_sum * tl.exp((b_max - b_new).to(tl.float32))[:, None] + tile.exp_logits(b_dist, model, b_new, T)
        b_max = b_new
    o_n = tl.cast(pid_s, tl.int64) * size.n + rows.o_n
    tl.store(sums.max_logit + o_n, b_max, mask=rows.m_i)
    tl.store(sums.sum_exp + o_n, tl.sum(b_sum.to(tl.float64), 1), mask=rows.m_i)


@triton.jit
def merge_exponentials(size, models, sums, t, pid, n_pids):
    """Merge the largest logits and sums of exponentials of all slices."""
    for unit in range(pid, tl.cdiv(size.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        m_n = o_n < size.n
        b_max = tl.load(sums.max_logit + o_n, mask=m_n, other=0.0)
        for k in range(1, size.slices):
            o_k = tl.cast(k, tl.int64) * size.n + o_n
            b_max = tl.maximum(b_max, tl.load(sums.max_logit + o_k, mask=m_n, other=0.0))
        b_sum = tl.full([128], 0.0, tl.float64)
        for k in range(size.slices):
            o_k = tl.cast(k, tl.int64) * size.n + o_n
            b_diff = tl.load(sums.max_logit + o_k, mask=m_n, other=0.0) - b_max
            b_exp = tl.load(sums.sum_exp + o_k, mask=m_n, other=0.0)
            b_sum += b_exp * tl.exp(tl.maximum(b_diff, -700.0).to(tl.float64))
        o_t = tl.cast(t, tl.int64) * size.n + o_n
        tl.store(models.max_logit + o_t, b_max, mask=m_n)
        tl.store(models.sum_exp + o_t, b_sum.to(tl.float32), mask=m_n)


@triton.jit
def update_centre(b_D, b_V, b_mean, b_weight):
    """Update the mean vote `[H, J]` and its weight by a tile: squared distances from there do not cancel.

    All threads must use the same mean. The compiler may compute a cheap sum twice, in two orders, where other threads
    need it too: so both sums are over full tiles, which it computes once.
    """
    b_D = tl.broadcast_to(b_D[:, None, :], b_V.shape)
    b_weight += tl.sum(b_D, 0)
    b_shift = tl.sum(mul_without_fma(b_V - b_mean[None, :, :], b_D), 0)
    return b_mean + b_shift / tl.where(b_weight > 0.0, b_weight, 1.0), b_weight


@triton.jit
def shift_sums(b_D, b_DE, b_DEE, b_shift):
    """Return sums of distances and of their squares after adding `b_shift` to every distance."""
    return b_DE + b_shift * b_D, b_DEE + b_shift * (2.0 * b_DE + b_shift * b_D)


@triton.jit
def compute_D_use(size, models, model, t, rows, b_V, FIRST: tl.constexpr, T: tl.constexpr):
    """Compute D_use `[I, J]`, in the first iteration `[I, 1]` without its factor 1/j."""
    if FIRST:
        return rows.f[:, None]
    else:
        return rows.f[:, None] * tile.compute_R(size, models, model, t, rows, b_V, T)


@triton.jit
def sum_inputs(args, size, models, sums, t, pid_b, pid_s, pid_j, FIRST: tl.constexpr, T: tl.constexpr):
    """Store the sums of a tile of outputs over the inputs of a slot."""
    CENTRE_TILES: tl.constexpr = (CENTRE_INPUTS + T.BLOCK_I - 1) // T.BLOCK_I
    start, n_inp = sample_range(args.offsets, pid_b, size.i, T.PACKED)
    cols = tile.load_output_tile(args, size, pid_j, T)
    model = 0 if FIRST else tile.load_model(models, tile.offset_model(size, t - 1, pid_b), cols, T)
    b_base = tl.full([T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    if not FIRST:
        b_base = model.mu
    b_f = tl.full([T.BLOCK_I], 0.0, tl.float32)
    b_D_sum = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_DE = tl.full([T.BLOCK_I, T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_DEE = tl.full([T.BLOCK_I, T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_centre, n_found, first = b_base, 0, pid_s
    b_weight = tl.full([T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    n_tiles = tl.cdiv(n_inp, T.BLOCK_I)
    # in a loop of its own: as a branch of the other it kept compilers busy for ever
    while (n_found < CENTRE_TILES) & (first < n_tiles):
        rows = tile.load_input_tile(args, start, n_inp, first, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_D = compute_D_use(size, models, model, t, rows, b_V, FIRST, T)
        b_new, b_weight = update_centre(b_D, b_V, b_centre, b_weight)
        b_DE, b_DEE = shift_sums(b_D_sum[:, None, :], b_DE, b_DEE, (b_centre - b_new)[None, :, :])
        b_centre = b_new
        b_f += rows.f
        b_D_sum += b_D
        b_DE, b_DEE = tile.add_distances(b_D, b_V - b_centre[None, :, :], b_DE, b_DEE)
        n_found += tl.where(tl.max(rows.f, 0) > 0.0, 1, 0)
        first += size.slots
    for pid_i in range(first, n_tiles, size.slots):
        rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_D = compute_D_use(size, models, model, t, rows, b_V, FIRST, T)
        b_f += rows.f
        b_D_sum += b_D
        b_DE, b_DEE = tile.add_distances(b_D, b_V - b_centre[None, :, :], b_DE, b_DEE)
    if pid_j == 0:
        tl.store(sums.f + tl.cast(pid_s, tl.int64) * size.b + pid_b, tl.sum(b_f.to(tl.float64), 0))
    row, share = tile.offset_model(size, pid_s, pid_b) + cols.start, 1.0 / tl.cast(size.j if FIRST else 1, tl.float64)
    b_D = tl.sum(b_D_sum.to(tl.float64), 0)
    # from the base that slots share instead of from the centre
    b_shift = b_centre.to(tl.float64) - b_base.to(tl.float64)
    b_DE, b_DEE = shift_sums(b_D[None, :], tl.sum(b_DE.to(tl.float64), 0), tl.sum(b_DEE.to(tl.float64), 0), b_shift)
    o_E, m_E = tile.offset_components(cols, T)
    o_E += row * T.H
    tl.store(sums.D_use + row + cols.o_j, b_D * share, mask=cols.m_j)
    tl.store(sums.D_E + o_E, b_DE * share, mask=m_E)
    tl.store(sums.D_EE + o_E, b_DEE * share, mask=m_E)


@triton.jit
def compute_models(args, size, sums, models, outs, t, pid_b, pid_m, T: tl.constexpr):
    """Compute the models of a tile of outputs from the sums of all slots."""
    o_j, m_j, here, o_out, m_h, o_mu, o_E = tile.locate_models(size, t, pid_b, pid_m, T)
    m_last, m_before = m_j & (t == size.n_iters - 1), m_j & (t > 0)
    stride = tl.cast(size.b, tl.int64) * size.j
    o_b, m_b = tl.full([1], 0, tl.int32) + pid_b, tl.full([1], 1, tl.int1)
    b_D = sum_slots(sums.D_use, size.slots, stride, o_out, m_j, T.BLOCK_S)
    b_D_ign = sum_slots(sums.f, size.slots, size.b, o_b, m_b, T.BLOCK_S) - b_D
    b_D_eps = b_D + T.EPS
    b_use = tl.load(args.use + o_j * T.USE_J, mask=m_j, other=0.0).to(tl.float64)
    b_ign = tl.load(args.ign + o_j * T.IGN_J, mask=m_j, other=0.0).to(tl.float64)
    b_a = b_use * b_D - b_ign * b_D_ign
    b_log = log_sigmoid(b_a)
    tl.store(models.D_use + here, b_D, mask=m_j)
    tl.store(models.D_ign + here, b_D_ign, mask=m_j)
    tl.store(models.a + here, b_a.to(tl.float32), mask=m_j)
    tl.store(outs.a + o_out, b_a.to(tl.float32), mask=m_last)
    b_DE = sum_slots(sums.D_E, size.slots, stride * T.H, o_E, m_h, T.BLOCK_S)
    b_DEE = sum_slots(sums.D_EE, size.slots, stride * T.H, o_E, m_h, T.BLOCK_S)
    b_old = tl.load(models.mu + o_mu - stride * T.H, mask=m_h & m_before[:, None], other=0.0).to(tl.float64)
    b_mu = ((b_DE + b_old * b_D[:, None]) / b_D_eps[:, None]).to(tl.float32)
    b_shift = b_mu.to(tl.float64) - b_old
    b_DEE = max_nan(b_DEE - 2.0 * b_shift * b_DE + b_shift * b_shift * b_D[:, None], 0.0)
    b_sig2 = b_DEE / b_D_eps[:, None] + T.EPS
    tl.store(models.D_E + o_mu, b_DE - b_shift * b_D[:, None], mask=m_h)
    tl.store(models.D_EE + o_mu, b_DEE, mask=m_h)
    tl.store(models.mu + o_mu, b_mu, mask=m_h)
    tl.store(outs.mu + o_E, b_mu, mask=m_h & m_last[:, None])
    tl.store(outs.sig2 + o_E, b_sig2.to(tl.float32), mask=m_h & m_last[:, None])
    if T.GAUSSIAN:
        # the same rounding in distances and in logarithms nearly cancels
        b_p = (0.5 / b_sig2).to(tl.float32)
        tl.store(models.p + o_mu, b_p, mask=m_h)
        b_log -= 0.5 * tl.sum(tl.where(m_h, LOG_PI - tl.log(b_p.to(tl.float64)), 0.0), 1)
    b_log, b_log_lo = tile.split_float64(b_log)
    tl.store(models.log + here, b_log, mask=m_j)
    tl.store(models.log_lo + here, b_log_lo, mask=m_j)


@triton.jit(do_not_specialize=("first", "last", *Counts._fields))
def products_fwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, groups, grad_slots, grad_slices, args,
    sums, models, outs, T: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: halves; in each iteration normalisers if SPLIT_J, sums over inputs, models."""
    size = Counts(n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, groups, grad_slots, grad_slices)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = (phase + STEPS - 3) // STEPS  # the first iteration needs no normalisers
        step = tl.where(phase > 0, (phase + STEPS - 3) % STEPS, STEPS)
        if phase == 0:
            tile.prepare(args, size, pid, n_pids, T)
        if T.SPLIT_J:
            if step == 0:
                for unit in range(pid, b * i_tiles * slices, n_pids):
                    pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                    sum_exponentials(args, size, models, sums, t, pid_b, pid_i, unit % slices, T)
            if step == 1:
                merge_exponentials(size, models, sums, t, pid, n_pids)
        if step == STEPS - 2:
            for unit in range(pid, b * slots * j_tiles, n_pids):
                pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                if t == 0:
                    sum_inputs(args, size, models, sums, t, pid_b, pid_s, pid_j, True, T)
                else:
                    sum_inputs(args, size, models, sums, t, pid_b, pid_s, pid_j, False, T)
        if step == STEPS - 1:
            n_blocks = tl.cdiv(j, T.BLOCK_M)
            for unit in range(pid, b * n_blocks, n_pids):
                compute_models(args, size, sums, models, outs, t, unit // n_blocks, unit % n_blocks, T)
