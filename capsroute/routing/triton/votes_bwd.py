"""Backward kernel of the vote form: from the last iteration to the first, with votes and shares formed again.

Axes as in `votes_types.py`; `docs/algorithm.md` derives the gradients. Iterations first hand sums over inputs to the
one before; when all have, one pass takes every iteration's share of the votes' gradients, which no memory ever holds.
"""

# constants are of any type to the compiler, and none to pyright
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false

import triton
import triton.language as tl

from .grid import wait_for_all
from .votes_halves import LARGEST_X, prepare, sigmoid
from .votes_model_bwd import assigned, find_dot, join_dot, logit_backward, lose, model_backward, share_backward
from .votes_param_bwd import add_W, clear_all, push, put_f
from .votes_tile import (
    add_to,
    columns_of,
    load_all,
    load_beta,
    load_mu_p,
    load_one,
    model_of,
    model_row,
    rows_of,
    span,
    total,
    votes,
)
from .votes_types import GradSplit, InputPtrs, LayerPtrs, SumSplit


@triton.jit
def forces(
    inp, layer, models, pulls, parts, grads, p_W, pid_g, pid_x, t, pid_b, rows, cols, pid_j, b_V, b_dV, b_df,
    FIRST: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Adds an iteration's part to the gradients of a tile's votes `[I, V, J]` and of f(a_inp), the latter `[I, J]`."""
    here, before = model_row(inp, t, pid_b), model_row(inp, t - 1, pid_b)
    b_da = load_one(pulls.a, here, cols, 0.0)[None, :]
    b_dD = share_backward(inp, layer, models, pulls, here, rows, cols, pid_j, b_V, T)
    model = 0 if FIRST else model_of(models, before, cols, T)
    if FIRST:
        b_R = tl.where(cols.m_j[None, :], 1.0 / inp.j, 0.0)
        b_dl = 0.0
    else:
        b_R = assigned(inp, layer, models, model, t, before, rows, cols, pid_j, b_V, T)
        b_dl = logit_backward(inp, pulls, t, rows, b_R, b_dD, T)
    b_df += b_R * b_dD - b_da * load_beta(layer.ign, rows, cols, inp.j, T.IGN_I, T.IGN_J)
    b_D = rows.f[:, None] * b_R
    o_beta = (tl.cast(pid_g, tl.int64) * inp.i + rows.o_i)[:, None] * inp.j + (cols.start + cols.o_j)[None, :]
    m_beta = rows.m_i[:, None] & cols.m_j[None, :]
    if T.USE_I:
        add_to(parts.use + o_beta, b_da * b_D, m_beta)
    if T.IGN_I:
        add_to(parts.ign + o_beta, b_da * (b_D - rows.f[:, None]), m_beta)
    for pid_v in range(T.CHUNKS):
        b_v = b_V if T.CHUNKS == 1 else votes(inp, layer, rows, cols, pid_j, pid_v, T)
        b_dE = load_all(pulls.D_E, here, cols, pid_v, T)[None, :, :]
        b_dEE = load_all(pulls.D_EE, here, cols, pid_v, T)[None, :, :]
        b_E = b_v - load_all(models.mu, here, cols, pid_v, T)[None, :, :]
        b_force = b_D[:, None, :] * (b_dE + 2.0 * b_dEE * b_E)
        if not FIRST:
            b_mu, b_p = load_mu_p(models, model, before, cols, pid_v, T)
            b_force -= (b_dl[:, None, :] * (b_v - b_mu[None, :, :])) * (2.0 * b_p)[None, :, :]
        if T.CHUNKS == 1:
            b_dV += b_force
        else:
            push(inp, layer, parts, grads, p_W, pid_g, pid_x, rows, cols, pid_j, pid_v, b_force, 0, T)
    return b_dV, b_df


@triton.jit
def finish(
    inp, layer, models, pulls, parts, grads, p_W, pid_g, pid_x, pid_b, start, n_inp, pid_i, cols, pid_j, b_dW,
    T: tl.constexpr,
):  # fmt: skip
    """Adds a tile's share, in all iterations, to the gradients of everything that votes and shares depend on."""
    rows = rows_of(inp, start, n_inp, pid_i, T)
    b_V = votes(inp, layer, rows, cols, pid_j, 0, T) if T.CHUNKS == 1 else 0
    b_dV = tl.full([T.BLOCK_I, T.BLOCK_C * T.BLOCK_H, T.BLOCK_J], 0.0, tl.float32)
    b_df = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_dV, b_df = forces(
        inp, layer, models, pulls, parts, grads, p_W, pid_g, pid_x, 0, pid_b, rows, cols, pid_j, b_V, b_dV, b_df,
        True, T,
    )  # fmt: skip
    for t in range(1, inp.n_iters):
        b_dV, b_df = forces(
            inp, layer, models, pulls, parts, grads, p_W, pid_g, pid_x, t, pid_b, rows, cols, pid_j, b_V, b_dV, b_df,
            False, T,
        )  # fmt: skip
    put_f(inp, grads, parts, pid_x, rows, tl.sum(b_df, 1), T)
    if T.CHUNKS == 1:
        b_dW = push(inp, layer, parts, grads, p_W, pid_g, pid_x, rows, cols, pid_j, 0, b_dV, b_dW, T)
    return b_dW


@triton.jit
def finish_all(inp, layer, cut, share, models, pulls, parts, grads, unit, T: tl.constexpr):
    """One unit of the last pass over votes: a group of samples, a slot of inputs and a slice of outputs."""
    pid_x = unit % share.slices
    pid_s = unit // share.slices % share.slots
    pid_g = unit // share.slices // share.slots
    pid_w = pid_g if T.W_I else pid_g * share.slots + pid_s
    pid_w = pid_w if T.W_J else pid_w * share.slices + pid_x
    p_W = parts.W + pid_w * tl.cast(inp.i if T.W_I else 1, tl.int64) * (inp.j if T.W_J else 1) * (T.D * T.H)
    for pid_j in range(pid_x, cut.j_tiles, share.slices):
        cols = columns_of(inp, layer, pid_j, T)
        b_dW = tl.full([T.BLOCK_H * T.BLOCK_J, T.BLOCK_D], 0.0, tl.float32)
        for pid_b in range(pid_g, inp.b, share.groups):
            start, n_inp = span(inp, pid_b, T)
            for pid_i in range(pid_s, tl.cdiv(n_inp, T.BLOCK_I), share.slots):
                b_dW = finish(
                    inp, layer, models, pulls, parts, grads, p_W, pid_g, pid_x, pid_b, start, n_inp, pid_i, cols, pid_j,
                    b_dW, T,
                )  # fmt: skip
        if T.ONE_STEP:
            add_W(inp, p_W, cols, 0, 0, b_dW, T)


@triton.jit
def reduce_inputs(inp, share, parts, grads, pid, n_pids, T: tl.constexpr):
    """The gradients of x and a_inp, from all slices of outputs."""
    BLOCK: tl.constexpr = 256 if T.SPLIT_J else 2048
    SLOTS: tl.constexpr = 8 if T.SPLIT_J else 1
    n_x = tl.cast(inp.n, tl.int64) * (T.C * T.D)
    for unit in range(pid, tl.cdiv(n_x, BLOCK), n_pids):
        o_x = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_x = o_x < n_x
        b_x = tl.load(inp.x + o_x, mask=m_x, other=0.0).to(tl.float32)
        b_dx = tl.where(tl.abs(b_x) <= LARGEST_X, total(parts.x, share.slices, n_x, o_x, m_x, SLOTS), 0.0)
        tl.store(grads.x + o_x, b_dx.to(tl.float32).to(grads.x.dtype.element_ty), mask=m_x)
    for unit in range(pid, tl.cdiv(inp.n, BLOCK), n_pids):
        o_n = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_n = o_n < inp.n
        b_f = sigmoid(tl.load(inp.a + o_n, mask=m_n, other=0.0))
        b_df = total(parts.f, share.slices, inp.n, o_n, m_n, SLOTS) * b_f * (1.0 - b_f)
        tl.store(grads.a_inp + o_n, b_df.to(tl.float32).to(grads.a_inp.dtype.element_ty), mask=m_n)


@triton.jit
def reduce_params(inp, share, pulls, parts, grads, pid, n_pids, T: tl.constexpr):
    """The gradients of the parameters, from all parts or, where inputs share them, from those of the models."""
    BLOCK: tl.constexpr = 256 if T.SPLIT_J else 64
    SLOTS: tl.constexpr = 8 if T.SPLIT_J else 32
    n_W = tl.cast(inp.i if T.W_I else 1, tl.int64) * (inp.j if T.W_J else 1) * (T.D * T.H)
    for unit in range(pid, tl.cdiv(n_W, BLOCK), n_pids):
        o_W = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        o_hd = o_W if T.ONE_PROGRAM else o_W // (T.D * T.H) * (T.D * T.H) + o_W % T.H * T.D + o_W // T.H % T.D
        b_dW = total(parts.W, share.w_slots, n_W, o_hd, o_W < n_W, SLOTS)
        tl.store(grads.W + o_W, b_dW.to(tl.float32), mask=o_W < n_W)
    n_B = tl.cast(inp.i if T.B_I else 1, tl.int64) * inp.j * (T.C * T.H)
    for unit in range((pid + n_pids // 4) % n_pids, tl.cdiv(n_B, BLOCK), n_pids):
        o_B = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m_B = o_B < n_B
        if T.B_I:
            b_dB = total(parts.B, share.groups, n_B, o_B, m_B, SLOTS)
        else:
            b_dB = total(pulls.B, inp.n_iters * inp.b, n_B, o_B, m_B, SLOTS)
        tl.store(grads.B + o_B, b_dB.to(tl.float32), mask=m_B)
    pid_use, pid_ign = (pid + n_pids // 2) % n_pids, (pid + n_pids * 3 // 4) % n_pids
    reduce_beta(inp, share, pulls.use, parts.use, grads.use, pid_use, n_pids, T.USE_I, BLOCK, SLOTS)
    reduce_beta(inp, share, pulls.ign, parts.ign, grads.ign, pid_ign, n_pids, T.IGN_I, BLOCK, SLOTS)


@triton.jit
def reduce_beta(
    inp, share, p_all, p_own, p_beta, pid, n_pids, OWN: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    n = tl.cast(inp.i if OWN else 1, tl.int64) * inp.j
    for unit in range(pid, tl.cdiv(n, BLOCK), n_pids):
        o = tl.cast(unit, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        if OWN:
            b_d = total(p_own, share.groups, n, o, o < n, SLOTS)
        else:
            b_d = total(p_all, inp.n_iters * inp.b, n, o, o < n, SLOTS)
        tl.store(p_beta + o, b_d.to(tl.float32), mask=o < n)


@triton.jit(
    do_not_specialize=(
        "first", "last", "n", "b", "i", "j", "n_iters", "i_tiles", "j_tiles", "slots", "slices", "groups", "x_slots",
        "x_slices", "w_slots", "lines",
    )
)  # fmt: skip
def votes_bwd_kernel(
    p_count, first, last, n, b, i, j, n_iters, i_tiles, j_tiles, slots, slices, groups, x_slots, x_slices, w_slots,
    lines, given, models, pairs, pulls, backs, parts, grads, T: tl.constexpr,
):  # fmt: skip
    """Each iteration but the first: gradients of the models' sums, then sums over inputs; at the end all gradients."""
    inp = InputPtrs(given.a, given.x, given.offsets, pairs.f, pairs.x, pairs.x_unit, n, b, i, j, n_iters)
    layer = LayerPtrs(given.W, given.B, given.use, given.ign, pairs.W, pairs.W_unit)
    cut, share = SumSplit(i_tiles, j_tiles, slots, slices), GradSplit(groups, x_slots, x_slices, w_slots)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    if first == 0:
        clear_all(parts.f if T.ONE_STEP and T.W_J else parts.W, lines, pid, n_pids)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        end = phase - STEPS * (n_iters - 1)
        t = tl.maximum(n_iters - 1 - phase // STEPS, 0)
        step = phase % STEPS
        if T.DOT:  # noqa: SIM102 (known when compiling)
            if phase == 0:
                prepare(inp, layer, pid, n_pids, T)
        if (step == 0) & (end <= 0):
            n_blocks = tl.cdiv(j, T.BLOCK_M)
            for unit in range(pid, b * n_blocks, n_pids):
                pid_b, pid_m = unit // n_blocks, unit % n_blocks
                model_backward(inp, layer, cut, models, pulls, backs, grads, t, pid_b, pid_m, T)
        if T.SPLIT_J:
            if (step == 1) & (end < 0):
                for unit in range(pid, b * i_tiles * slices, n_pids):
                    pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                    find_dot(inp, layer, cut, models, pulls, backs, t, pid_b, pid_i, unit % slices, T)
            if (step == 2) & (end < 0):
                join_dot(inp, cut, pulls, backs, t, pid, n_pids)
        if (step == STEPS - 1) & (end < 0):
            for unit in range(pid, b * slots * j_tiles, n_pids):
                pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                lose(inp, layer, cut, models, pulls, backs, t, pid_b, pid_s, pid_j, T)
        if end == 1:
            for unit in range(pid, groups * x_slots * x_slices, n_pids):
                finish_all(inp, layer, cut, share, models, pulls, parts, grads, unit, T)
        if end == 2:
            if not T.ONE_TILE:
                reduce_inputs(inp, share, parts, grads, pid, n_pids, T)
            reduce_params(inp, share, pulls, parts, grads, pid, n_pids, T)
