"""Forward kernels of the vote form. Axes as in `votes_types.py`.

Where one tile holds a sample, one program routes it, forms its votes once, and waits for no other program. Sums and
models go through memory all the same, which gives each the threads that suit it; a barrier shows a program its writes.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from . import votes_tile as tile
from .grid import wait_for_all
from .numerics import log_sigmoid, max_nan, mul_without_fma, sample_range
from .votes_types import Columns, SumSplit

LOG_PI = tl.constexpr(1.1447298858494002)
CENTRE_INPUTS = tl.constexpr(32)
"""Inputs from whose tiles programs choose a centre to measure distances from."""


@triton.jit
def sum_exponentials(args, split, models, sums, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """Store the largest logit and the sum of exponentials of a tile's inputs over a slice of outputs."""
    start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
    rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
    before = tile.offset_model(args, t - 1, pid_b)
    b_max = tl.full([T.BLOCK_I], tile.MIN_LOGIT, tl.float32 if T.GAUSSIAN else tl.float64)
    b_sum = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, split.j_tiles, 0), split.slices):
        cols = tile.load_output_tile(args, pid_j, T)
        model = tile.load_model(models, before, cols, T)
        b_dist = tile.compute_distances(model, tile.compute_votes(args, rows, cols, T))
        b_new = tl.maximum(b_max, tl.max(tile.compute_logits(b_dist, model, T), 1))
        b_sum = b_sum * tl.exp((b_max - b_new).to(tl.float32))[:, None] + tile.exp_logits(b_dist, model, b_new, T)
        b_max = b_new
    o_n = tl.cast(pid_s, tl.int64) * args.n + rows.o_n
    tl.store(sums.max_logit + o_n, b_max, mask=rows.m_i)
    tl.store(sums.sum_exp + o_n, tl.sum(b_sum.to(tl.float64), 1), mask=rows.m_i)


@triton.jit
def merge_exponentials(args, split, models, sums, t, pid, n_pids):
    """Merge the largest logits and sums of exponentials of all slices."""
    for unit in range(pid, tl.cdiv(args.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        m_n = o_n < args.n
        b_max = tl.load(sums.max_logit + o_n, mask=m_n, other=0.0)
        for k in range(1, split.slices):
            o_k = tl.cast(k, tl.int64) * args.n + o_n
            b_max = tl.maximum(b_max, tl.load(sums.max_logit + o_k, mask=m_n, other=0.0))
        b_sum = tl.full([128], 0.0, tl.float64)
        for k in range(split.slices):
            o_k = tl.cast(k, tl.int64) * args.n + o_n
            b_diff = tl.load(sums.max_logit + o_k, mask=m_n, other=0.0) - b_max
            b_exp = tl.load(sums.sum_exp + o_k, mask=m_n, other=0.0)
            b_sum += b_exp * tl.exp(tl.maximum(b_diff, -700.0).to(tl.float64))
        o_t = tl.cast(t, tl.int64) * args.n + o_n
        tl.store(models.max_logit + o_t, b_max, mask=m_n)
        tl.store(models.sum_exp + o_t, b_sum.to(tl.float32), mask=m_n)


@triton.jit
def update_centre(b_D, b_V, b_mean, b_weight):
    """Update the mean vote `[V, J]` and its weight by a tile: squared distances from there do not cancel.

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
def load_model_before(args, models, t, pid_b, cols, T: tl.constexpr):
    """Load the models of the iteration before, means of zero in the first."""
    known = Columns(cols.start, cols.o_j, cols.m_j & (t > 0))
    return tile.load_model(models, tile.offset_model(args, t - 1, pid_b), known, T)


@triton.jit
def compute_D_use(args, models, model, t, rows, b_V, T: tl.constexpr):
    """Compute D_use `[I, J]`, in the first iteration without its factor 1/j."""
    b_R = tl.full([T.BLOCK_I, T.BLOCK_J], 1.0, tl.float32)
    if t > 0:
        b_R = tile.compute_R(args, models, model, t, rows, b_V, T)
    return mul_without_fma(rows.f[:, None], b_R)


@triton.jit
def compute_share(args, t):
    """Return the factor that D_use of the first iteration lacks."""
    return 1.0 / tl.where(t > 0, 1, args.j).to(tl.float64)


@triton.jit
def score_inputs(args, rows, cols, b_D, t, T: tl.constexpr):
    """Compute each input's part `[I, J]` of the scores: benefit of its use less cost of ignoring it."""
    if T.BETAS_K:
        b_use, b_ign = tile.load_betas(args, rows, cols, T)
        b_D = b_D.to(tl.float64) * compute_share(args, t)
        return b_use.to(tl.float64) * b_D - b_ign.to(tl.float64) * (rows.f.to(tl.float64)[:, None] - b_D)
    else:
        return tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float64)


@triton.jit
def store_sums(
    args, sums, t, pid_b, pid_s, cols, b_f, b_D, b_a, b_DE, b_DEE, b_centre, b_base, T: tl.constexpr
):  # fmt: skip
    """Store sums over a slot's inputs, of distances from the base that slots share instead of from the centre."""
    row, share = tile.offset_model(args, pid_s, pid_b) + cols.start, compute_share(args, t)
    b_D = tl.sum(b_D.to(tl.float64), 0)
    b_DE, b_DEE = tl.sum(b_DE.to(tl.float64), 0), tl.sum(b_DEE.to(tl.float64), 0)
    b_DE, b_DEE = shift_sums(b_D[None, :], b_DE, b_DEE, b_centre.to(tl.float64) - b_base.to(tl.float64))
    o_E, m_E = tile.offset_votes(cols, T)
    o_E += row * (T.C * T.H)
    if cols.start == 0:
        tl.store(sums.f + tl.cast(pid_s, tl.int64) * args.b + pid_b, tl.sum(b_f.to(tl.float64), 0))
    tl.store(sums.D_use + row + cols.o_j, b_D * share, mask=cols.m_j)
    tl.store(sums.D_E + o_E, b_DE * share, mask=m_E)
    tl.store(sums.D_EE + o_E, b_DEE * share, mask=m_E)
    if T.BETAS_K:
        tl.store(sums.a + row + cols.o_j, tl.sum(b_a, 0), mask=cols.m_j)


@triton.jit
def sum_inputs(args, split, models, sums, t, pid_b, pid_s, pid_j, T: tl.constexpr):
    """Store the sums of a tile of outputs over the inputs of a slot."""
    V: tl.constexpr = T.BLOCK_C * T.BLOCK_H
    CENTRE_TILES: tl.constexpr = (CENTRE_INPUTS + T.BLOCK_I - 1) // T.BLOCK_I
    start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
    cols = tile.load_output_tile(args, pid_j, T)
    model = load_model_before(args, models, t, pid_b, cols, T)
    b_f = tl.full([T.BLOCK_I], 0.0, tl.float32)
    b_D_sum = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_a = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float64)
    b_DE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    b_DEE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    b_centre, n_found = model.mu, 0
    b_weight = tl.full([V, T.BLOCK_J], 0.0, tl.float32)
    for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), split.slots):
        rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
        b_V = tile.compute_votes(args, rows, cols, T)
        b_D = compute_D_use(args, models, model, t, rows, b_V, T)
        if n_found < CENTRE_TILES:
            b_new, b_weight = update_centre(b_D, b_V, b_centre, b_weight)
            b_DE, b_DEE = shift_sums(b_D_sum[:, None, :], b_DE, b_DEE, (b_centre - b_new)[None, :, :])
            b_centre = b_new
            n_found += tl.where(tl.max(rows.f, 0) > 0.0, 1, 0)
        b_f += rows.f
        b_D_sum += b_D
        b_a += score_inputs(args, rows, cols, b_D, t, T)
        b_E = b_V - b_centre[None, :, :]
        b_DxE = b_D[:, None, :] * b_E
        b_DE += b_DxE
        b_DEE += b_DxE * b_E
    store_sums(args, sums, t, pid_b, pid_s, cols, b_f, b_D_sum, b_a, b_DE, b_DEE, b_centre, model.mu, T)


@triton.jit
def compute_scores(args, split, sums, o_out, o_j, m_j, b_D, b_D_ign, stride, T: tl.constexpr):
    """Compute scores: benefit of what outputs use less cost of what they ignore."""
    if T.BETAS_K:
        return tile.sum_slots(sums.a, split.slots, stride, o_out, m_j, T.BLOCK_S)
    else:
        b_use = tl.load(args.use + (o_j if T.USE_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        b_ign = tl.load(args.ign + (o_j if T.IGN_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        return b_use * b_D - b_ign * b_D_ign


@triton.jit
def compute_models(args, split, sums, models, outs, t, pid_b, pid_m, T: tl.constexpr):
    """Compute the models of a tile of outputs from the sums of all slots."""
    SIZE: tl.constexpr = T.C * T.H
    o_j = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M)
    m_j = o_j < args.j
    here = tile.offset_model(args, t, pid_b) + o_j
    m_last = o_j < tl.where(t == args.n_iters - 1, args.j, 0)
    m_before = o_j < tl.where(t > 0, args.j, 0)
    o_out = tl.cast(pid_b, tl.int64) * args.j + o_j
    stride = tl.cast(args.b, tl.int64) * args.j
    o_b, m_b = tl.full([1], 0, tl.int32) + pid_b, tl.full([1], 1, tl.int1)
    b_f_total = tile.sum_slots(sums.f, split.slots, args.b, o_b, m_b, T.BLOCK_S)
    b_D = tile.sum_slots(sums.D_use, split.slots, stride, o_out, m_j, T.BLOCK_S)
    b_D_ign = b_f_total - b_D
    b_a = compute_scores(args, split, sums, o_out, o_j, m_j, b_D, b_D_ign, stride, T)
    b_D_eps = b_D + T.EPS
    b_log = log_sigmoid(b_a)
    tl.store(models.D_use + here, b_D, mask=m_j)
    tl.store(models.D_ign + here, b_D_ign, mask=m_j)
    tl.store(models.a + here, b_a.to(tl.float32), mask=m_j)
    tl.store(outs.a + o_out, b_a.to(tl.float32), mask=m_last)
    o_c, o_h, m_v = tile.offset_components(T)
    o_v, m_v = (o_c * T.H + o_h)[None, :], m_j[:, None] & m_v[None, :]
    o_mu, o_E = here[:, None] * SIZE + o_v, o_out[:, None] * SIZE + o_v
    b_DE = tile.sum_slots(sums.D_E, split.slots, stride * SIZE, o_E, m_v, T.BLOCK_S)
    b_DEE = tile.sum_slots(sums.D_EE, split.slots, stride * SIZE, o_E, m_v, T.BLOCK_S)
    b_old = tl.load(models.mu + o_mu - stride * SIZE, mask=m_v & m_before[:, None], other=0.0).to(tl.float64)
    b_mu = ((b_DE + b_old * b_D[:, None]) / b_D_eps[:, None]).to(tl.float32)
    b_shift = b_mu.to(tl.float64) - b_old
    b_DEE = max_nan(b_DEE - 2.0 * b_shift * b_DE + b_shift * b_shift * b_D[:, None], 0.0)
    b_sig2 = b_DEE / b_D_eps[:, None] + T.EPS
    tl.store(models.D_E + o_mu, b_DE - b_shift * b_D[:, None], mask=m_v)
    tl.store(models.D_EE + o_mu, b_DEE, mask=m_v)
    tl.store(models.mu + o_mu, b_mu, mask=m_v)
    tl.store(outs.mu + o_E, b_mu, mask=m_v & m_last[:, None])
    tl.store(outs.sig2 + o_E, b_sig2.to(tl.float32), mask=m_v & m_last[:, None])
    if T.GAUSSIAN:
        # the same rounding in distances and in logarithms nearly cancels
        b_p = (0.5 / b_sig2).to(tl.float32)
        tl.store(models.p + o_mu, b_p, mask=m_v)
        b_log -= 0.5 * tl.sum(tl.where(m_v, LOG_PI - tl.log(b_p.to(tl.float64)), 0.0), 1)
    b_log, b_log_lo = tile.split_float64(b_log)
    tl.store(models.log + here, b_log, mask=m_j)
    tl.store(models.log_lo + here, b_log_lo, mask=m_j)


@triton.jit(
    do_not_specialize=("first", "last", "n", "b", "i", "j", "k", "n_iters", "i_tiles", "j_tiles", "slots", "slices")
)  # fmt: skip
def votes_fwd_kernel(
    p_count, first, last, n, b, i, j, k, n_iters, i_tiles, j_tiles, slots, slices, route_args, sums, models, outs,
    T: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: in each iteration normalisers if SPLIT_J, then sums over inputs, then models."""
    args = tile.make_args(route_args, n, b, i, j, k, n_iters)
    split = SumSplit(i_tiles, j_tiles, slots, slices)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = (phase + STEPS - 2) // STEPS  # the first iteration needs no normalisers
        step = (phase + STEPS - 2) % STEPS + 2 - STEPS
        if T.SPLIT_J:
            if step == -2:
                for unit in range(pid, b * i_tiles * slices, n_pids):
                    pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                    sum_exponentials(args, split, models, sums, t, pid_b, pid_i, unit % slices, T)
            if step == -1:
                merge_exponentials(args, split, models, sums, t, pid, n_pids)
        if step == 0:
            for unit in range(pid, b * slots * j_tiles, n_pids):
                pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                sum_inputs(args, split, models, sums, t, pid_b, pid_s, pid_j, T)
        if step == 1:
            n_blocks = tl.cdiv(j, T.BLOCK_M)
            for unit in range(pid, b * n_blocks, n_pids):
                compute_models(args, split, sums, models, outs, t, unit // n_blocks, unit % n_blocks, T)


@triton.jit(do_not_specialize=("n", "b", "i", "j", "k", "n_iters"))
def small_fwd_kernel(n, b, i, j, k, n_iters, route_args, sums, models, outs, T: tl.constexpr):
    """Run all iterations of one sample: sums over its inputs, then models."""
    args = tile.make_args(route_args, n, b, i, j, k, n_iters)
    pid_b = tl.program_id(0)
    start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
    rows, cols = tile.load_input_tile(args, start, n_inp, 0, T), tile.load_output_tile(args, 0, T)
    b_V = tile.compute_votes(args, rows, cols, T)
    for t in range(n_iters):
        model = load_model_before(args, models, t, pid_b, cols, T)
        b_D = compute_D_use(args, models, model, t, rows, b_V, T)
        b_centre, _ = update_centre(b_D, b_V, model.mu, 0.0)
        b_E = b_V - b_centre[None, :, :]
        b_DxE = b_D[:, None, :] * b_E
        b_a = score_inputs(args, rows, cols, b_D, t, T)
        store_sums(args, sums, t, pid_b, 0, cols, rows.f, b_D, b_a, b_DxE, b_DxE * b_E, b_centre, model.mu, T)
        tl.debug_barrier()
        compute_models(args, SumSplit(1, 1, 1, 1), sums, models, outs, t, pid_b, 0, T)
        tl.debug_barrier()
