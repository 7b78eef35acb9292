"""Forward kernel of the vote form. Axes as in `votes_types.py`."""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from .grid import wait_for_all
from .numerics import max_nan, min_nan, mul_without_fma
from .votes_halves import prepare
from .votes_tile import (
    LOWEST,
    add_to,
    assign,
    chunk,
    clear,
    columns_of,
    distances,
    in_two,
    load_betas,
    load_mu_p,
    logits,
    model_of,
    model_row,
    powers,
    rows_of,
    span,
    total,
    votes,
)
from .votes_types import InputPtrs, LayerPtrs, SumSplit

LOG_PI = tl.constexpr(1.1447298858494002)


@triton.jit
def normalise(inp, layer, cut, models, sums, t, pid_b, pid_i, pid_s, T: tl.constexpr):
    """A slice's part of the normalisers of a tile's inputs, over tiles of outputs."""
    start, n_inp = span(inp, pid_b, T)
    rows = rows_of(inp, start, n_inp, pid_i, T)
    row = model_row(inp, t - 1, pid_b)
    b_top = tl.full([T.BLOCK_I], LOWEST, tl.float32 if T.GAUSSIAN else tl.float64)
    b_sum = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for pid_j in range(pid_s, tl.where(pid_i * T.BLOCK_I < n_inp, cut.j_tiles, 0), cut.slices):
        cols = columns_of(inp, layer, pid_j, T)
        model = model_of(models, row, cols, T)
        b_V = votes(inp, layer, rows, cols, pid_j, 0, T) if T.CHUNKS == 1 else 0
        far = distances(inp, layer, models, model, row, rows, cols, pid_j, b_V, T)
        new = tl.maximum(b_top, tl.max(logits(far, model, T), 1))
        b_sum = b_sum * tl.exp((b_top - new).to(tl.float32))[:, None] + powers(far, model, new, T)
        b_top = new
    o_n = tl.cast(pid_s, tl.int64) * inp.n + rows.o_n
    tl.store(sums.top + o_n, b_top, mask=rows.m_i)
    tl.store(sums.all + o_n, tl.sum(b_sum.to(tl.float64), 1), mask=rows.m_i)


@triton.jit
def join(inp, cut, models, sums, t, pid, n_pids):
    """The normalisers, from those of all slices."""
    for unit in range(pid, tl.cdiv(inp.n, 128), n_pids):
        o_n = tl.cast(unit, tl.int64) * 128 + tl.arange(0, 128)
        m_n = o_n < inp.n
        b_top = tl.load(sums.top + o_n, mask=m_n, other=0.0)
        for k in range(1, cut.slices):
            b_top = tl.maximum(b_top, tl.load(sums.top + tl.cast(k, tl.int64) * inp.n + o_n, mask=m_n, other=0.0))
        b_sum = tl.full([128], 0.0, tl.float64)
        for k in range(cut.slices):
            o_k = tl.cast(k, tl.int64) * inp.n + o_n
            b_less = tl.load(sums.top + o_k, mask=m_n, other=0.0) - b_top
            b_sum += tl.load(sums.all + o_k, mask=m_n, other=0.0) * tl.exp(tl.maximum(b_less, -700.0).to(tl.float64))
        o_t = tl.cast(t, tl.int64) * inp.n + o_n
        tl.store(models.top + o_t, b_top, mask=m_n)
        tl.store(models.all + o_t, b_sum.to(tl.float32), mask=m_n)


@triton.jit
def centre(b_D, b_V, b_mean, b_weight):
    """Mean votes `[V, J]` and their weight, with a tile's: squares of distances from there do not cancel.

    All must count from the same number. Where other threads want a sum too, the compiler may sum twice, in another
    order, if that is cheap: so both sums are of whole tiles, which it does once and hands on.
    """
    b_all = tl.broadcast_to(b_D[:, None, :], b_V.shape)
    b_weight += tl.sum(b_all, 0)
    b_off = tl.sum(mul_without_fma(b_V - b_mean[None, :, :], b_all), 0)
    return b_mean + b_off / tl.where(b_weight > 0.0, b_weight, 1.0), b_weight


@triton.jit
def moved(b_D, b_DE, b_DEE, b_move):
    """Sums of distances and of their squares, if all distances are larger by so much."""
    return b_DE + b_move * b_D, b_DEE + b_move * (2.0 * b_DE + b_move * b_D)


@triton.jit
def from_base(b_D, b_DE, b_DEE, b_centre, b_base):
    """Sums `[J]`, `[V, J]` and `[V, J]`, counted from a base instead, which all slots share."""
    return moved(b_D[None, :], b_DE, b_DEE, b_centre.to(tl.float64) - b_base.to(tl.float64))


@triton.jit
def uses(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, FIRST: tl.constexpr, T: tl.constexpr):
    """How much outputs use of a tile's inputs, `[I, J]`, at first `[I, 1]`."""
    if FIRST:
        return rows.f[:, None]
    else:
        far = distances(inp, layer, models, model, before, rows, cols, pid_j, b_V, T)
        b_R = assign(inp, models, model, t, rows, far, T)
        # of matrix products a thread has several inputs, and adds these first; and registers are short
        return rows.f[:, None] * b_R if T.DOT else mul_without_fma(rows.f[:, None], b_R)


@triton.jit
def worth(inp, layer, rows, cols, b_D, share, T: tl.constexpr):
    """Benefit from what outputs use of a tile's inputs, less cost of what they ignore, `[I, J]`."""
    b_gain, b_cost = load_betas(inp, layer, rows, cols, T)
    b_each = b_D.to(tl.float64) * share
    return b_gain.to(tl.float64) * b_each - b_cost.to(tl.float64) * (rows.f.to(tl.float64)[:, None] - b_each)


@triton.jit
def add_votes(b_D, b_E, b_DE, b_DEE):
    """To the sums of distances `[I, V, J]` and of their squares."""
    b_DxE = b_D[:, None, :] * b_E
    return b_DE + b_DxE, b_DEE + b_DxE * b_E


@triton.jit
def gain(inp, layer, cut, models, sums, t, pid_b, pid_s, pid_j, FIRST: tl.constexpr, T: tl.constexpr):
    """A tile of outputs' sums over the inputs of a slot; at first inputs belong to all alike, and shares wait."""
    V: tl.constexpr = T.BLOCK_C * T.BLOCK_H
    start, n_inp = span(inp, pid_b, T)
    cols = columns_of(inp, layer, pid_j, T)
    before = model_row(inp, t - 1, pid_b)
    model = 0 if FIRST else model_of(models, before, cols, T)
    b_base = tl.full([V, T.BLOCK_J], 0.0, tl.float32)
    if T.CHUNKS == 1 and not FIRST:
        b_base = model.mu
    b_centre = b_base
    o_sum = model_row(inp, pid_s, pid_b) + cols.start
    share = 1.0 / tl.cast(inp.j if FIRST else 1, tl.float64)
    b_f = tl.full([T.BLOCK_I], 0.0, tl.float32)
    # tiles' sums are put together with what tiles used: both must be as exact, or far from zero variances are lost
    b_use = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float64 if T.CHUNKS > 1 else tl.float32)
    b_a = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float64)
    b_DE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    b_DEE = tl.full([T.BLOCK_I, V, T.BLOCK_J], 0.0, tl.float32)
    n_tiles = tl.cdiv(n_inp, T.BLOCK_I)
    first = pid_s
    if T.CHUNKS == 1:
        looks = 0
        b_weight = tl.full([V, T.BLOCK_J], 0.0, tl.float32)
        # in a loop of its own: as a branch of the other it kept compilers busy for ever
        while (looks < T.CENTRE_TILES) & (first < n_tiles):
            rows = rows_of(inp, start, n_inp, first, T)
            b_V = votes(inp, layer, rows, cols, pid_j, 0, T)
            b_D = uses(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, FIRST, T)
            b_new, b_weight = centre(b_D, b_V, b_centre, b_weight)
            b_DE, b_DEE = moved(b_use[:, None, :], b_DE, b_DEE, (b_centre - b_new)[None, :, :])
            b_centre = b_new
            b_f += rows.f
            b_use += b_D
            if T.BETAS_I:
                b_a += worth(inp, layer, rows, cols, b_D, share, T)
            b_DE, b_DEE = add_votes(b_D, b_V - b_centre[None, :, :], b_DE, b_DEE)
            looks += tl.where(tl.max(rows.f, 0) > 0.0, 1, 0)
            first += cut.slots
    else:
        clear(sums.D_E, o_sum, cols, T)
        clear(sums.D_EE, o_sum, cols, T)
    for pid_i in range(first, n_tiles, cut.slots):
        rows = rows_of(inp, start, n_inp, pid_i, T)
        b_V = votes(inp, layer, rows, cols, pid_j, 0, T) if T.CHUNKS == 1 else 0
        b_D = uses(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, FIRST, T)
        b_f += rows.f
        b_use += b_D
        if T.BETAS_I:
            b_a += worth(inp, layer, rows, cols, b_D, share, T)
        if T.CHUNKS == 1:
            b_DE, b_DEE = add_votes(b_D, b_V - b_centre[None, :, :], b_DE, b_DEE)
        else:
            for pid_v in range(T.CHUNKS):
                b_own = votes(inp, layer, rows, cols, pid_j, pid_v, T)
                b_old = b_base if FIRST else load_mu_p(models, model, before, cols, pid_v, T)[0]
                b_mid, _ = centre(b_D, b_own, b_old, 0.0)
                b_E = b_own - b_mid[None, :, :]
                b_DxE = b_D[:, None, :] * b_E
                b_DE_sum, b_DEE_sum = tl.sum(b_DxE.to(tl.float64), 0), tl.sum((b_DxE * b_E).to(tl.float64), 0)
                b_DE_sum, b_DEE_sum = from_base(tl.sum(b_D.to(tl.float64), 0), b_DE_sum, b_DEE_sum, b_mid, b_old)
                o_E, m_E = chunk(cols, pid_v, T)
                o_E += o_sum * (T.C * T.H)
                add_to(sums.D_E + o_E, b_DE_sum * share, m_E)
                add_to(sums.D_EE + o_E, b_DEE_sum * share, m_E)
    if pid_j == 0:
        tl.store(sums.f + tl.cast(pid_s, tl.int64) * inp.b + pid_b, tl.sum(b_f.to(tl.float64), 0))
    b_used = tl.sum(b_use.to(tl.float64), 0)
    tl.store(sums.D_use + o_sum + cols.o_j, b_used * share, mask=cols.m_j)
    if T.BETAS_I:
        tl.store(sums.a + o_sum + cols.o_j, tl.sum(b_a, 0), mask=cols.m_j)
    if T.CHUNKS == 1:
        o_E, m_E = chunk(cols, 0, T)
        o_E += o_sum * (T.C * T.H)
        b_DE_sum, b_DEE_sum = tl.sum(b_DE.to(tl.float64), 0), tl.sum(b_DEE.to(tl.float64), 0)
        b_DE_sum, b_DEE_sum = from_base(b_used, b_DE_sum, b_DEE_sum, b_centre, b_base)
        tl.store(sums.D_E + o_E, b_DE_sum * share, mask=m_E)
        tl.store(sums.D_EE + o_E, b_DEE_sum * share, mask=m_E)


@triton.jit
def log_sigmoid(x):
    return min_nan(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def score(inp, layer, cut, sums, o_out, o_j, m_j, b_D, b_ign, stride, T: tl.constexpr):
    """Benefit from what outputs use, less cost of what they ignore."""
    if T.BETAS_I:
        return total(sums.a, cut.slots, stride, o_out, m_j, T.BLOCK_S)
    else:
        b_gain = tl.load(layer.use + (o_j if T.USE_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        b_cost = tl.load(layer.ign + (o_j if T.IGN_J else o_j * 0), mask=m_j, other=0.0).to(tl.float64)
        return b_gain * b_D - b_cost * b_ign


@triton.jit
def m_step(inp, layer, cut, sums, models, outs, t, pid_b, pid_m, T: tl.constexpr):
    """A sample's models of some outputs, from the sums of all slots."""
    SIZE: tl.constexpr = T.C * T.H
    o_j = pid_m * T.BLOCK_M + tl.arange(0, T.BLOCK_M)
    m_j = o_j < inp.j
    here = model_row(inp, t, pid_b) + o_j
    m_last = o_j < tl.where(t == inp.n_iters - 1, inp.j, 0)
    m_before = o_j < tl.where(t > 0, inp.j, 0)
    o_out = tl.cast(pid_b, tl.int64) * inp.j + o_j
    stride = tl.cast(inp.b, tl.int64) * inp.j
    b_all = total(sums.f, cut.slots, inp.b, tl.full([1], 0, tl.int32) + pid_b, tl.full([1], 1, tl.int1), T.BLOCK_S)
    b_D = total(sums.D_use, cut.slots, stride, o_out, m_j, T.BLOCK_S)
    b_ign = b_all - b_D
    b_a = score(inp, layer, cut, sums, o_out, o_j, m_j, b_D, b_ign, stride, T)
    b_used = b_D + T.EPS
    b_log = log_sigmoid(b_a)
    tl.store(models.D_use + here, b_D, mask=m_j)
    tl.store(models.D_ign + here, b_ign, mask=m_j)
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
        b_DEE = max_nan(b_DEE - 2.0 * b_move * b_DE + b_move * b_move * b_D[:, None], 0.0)
        b_sig2 = b_DEE / b_used[:, None] + T.EPS
        tl.store(models.D_E + o_mu, b_DE - b_move * b_D[:, None], mask=m_v)
        tl.store(models.D_EE + o_mu, b_DEE, mask=m_v)
        tl.store(models.mu + o_mu, b_mu, mask=m_v)
        tl.store(outs.mu + o_E, b_mu, mask=m_v & m_last[:, None])
        tl.store(outs.sig2 + o_E, b_sig2.to(tl.float32), mask=m_v & m_last[:, None])
        if T.GAUSSIAN:
            # where a rounding of precisions counts, it does so in distances and in logarithms, and nearly cancels
            b_p = (0.5 / b_sig2).to(tl.float32)
            tl.store(models.p + o_mu, b_p, mask=m_v)
            b_log -= 0.5 * tl.sum(tl.where(m_v, LOG_PI - tl.log(b_p.to(tl.float64)), 0.0), 1)
    b_log, b_rest = in_two(b_log)
    tl.store(models.log + here, b_log, mask=m_j)
    tl.store(models.log_rest + here, b_rest, mask=m_j)


@triton.jit(
    do_not_specialize=("first", "last", "n", "b", "i", "j", "n_iters", "i_tiles", "j_tiles", "slots", "slices")
)  # fmt: skip
def votes_fwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, given, pairs, sums, models, outs,
    T: tl.constexpr,
):  # fmt: skip
    """Each iteration: normalisers where outputs are many, then sums over inputs, then models."""
    inp = InputPtrs(given.a, given.x, given.offsets, pairs.f, pairs.x, pairs.x_unit, n, b, i, j, n_iters)
    layer = LayerPtrs(given.W, given.B, given.use, given.ign, pairs.W, pairs.W_unit)
    cut = SumSplit(i_tiles, j_tiles, slots, slices)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        place = phase + STEPS - (3 if T.DOT else 2)
        t = place // STEPS
        step = place % STEPS + 2 - STEPS
        if T.DOT:
            step = tl.where(phase == 0, STEPS, step)
            if phase == 0:
                prepare(inp, layer, pid, n_pids, T)
        if T.SPLIT_J:
            if step == -2:
                for unit in range(pid, b * i_tiles * slices, n_pids):
                    pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                    normalise(inp, layer, cut, models, sums, t, pid_b, pid_i, unit % slices, T)
            if step == -1:
                join(inp, cut, models, sums, t, pid, n_pids)
        if step == 0:
            for unit in range(pid, b * slots * j_tiles, n_pids):
                pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                if t == 0:
                    gain(inp, layer, cut, models, sums, t, pid_b, pid_s, pid_j, True, T)
                else:
                    gain(inp, layer, cut, models, sums, t, pid_b, pid_s, pid_j, False, T)
        if step == 1:
            n_blocks = tl.cdiv(j, T.BLOCK_M)
            for unit in range(pid, b * n_blocks, n_pids):
                m_step(inp, layer, cut, sums, models, outs, t, unit // n_blocks, unit % n_blocks, T)
