"""Backward kernel of the vote form: from the last iteration to the first, with votes and shares formed again.

Axes as in `votes_types.py`; `docs/algorithm.md` derives the gradients. Iterations first hand sums over inputs to the
one before; when all have, one pass takes every iteration's part of the votes' gradients, which no memory ever holds.
Where one program routes a sample, it does both at once, with votes and their gradients in registers.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportCallIssue=false

import triton
import triton.language as tl

from . import votes_model_bwd as model_bwd
from . import votes_param_bwd as param_bwd
from . import votes_tile as tile
from .grid import wait_for_all
from .numerics import sample_range
from .votes_types import GradSplit, SumSplit


@triton.jit
def iteration_bwd(args, models, dsums, dlogits, t, pid_b, rows, cols, b_V, b_dV, T: tl.constexpr):
    """Add an iteration's part to the gradients of a tile's votes `[I, V, J]`.

    Also return D_use and its part of the gradients of f(a_inp), `[I, J]`. A program that routes a sample alone stores
    the sums over inputs that the iteration before needs.
    """
    here = tile.offset_model(args, t, pid_b)
    b_dD = model_bwd.D_use_bwd(args, models, dsums, here, rows, cols, b_V, T)
    b_R = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32) + tl.where(cols.m_j, 1.0 / args.j, 0.0)[None, :]
    if t > 0:
        model = tile.load_model(models, tile.offset_model(args, t - 1, pid_b), cols, T)
        b_R = tile.compute_R(args, models, model, t, rows, b_V, T)
        b_dl = model_bwd.logits_bwd(args, dsums, t, rows, b_R, b_dD, T)
        b_E = b_V - model.mu[None, :, :]
        b_lxE = b_dl[:, None, :] * b_E
        if T.ONE_PROGRAM:
            model_bwd.store_logit_sums(args, dlogits, 0, pid_b, cols, b_dl, b_lxE, b_lxE * b_E, T)
        b_dV -= b_lxE * (2.0 * model.p)[None, :, :]
    b_D = rows.f[:, None] * b_R
    b_E = b_V - tile.load_components(models.mu, here, cols, T)[None, :, :]
    b_dE = tile.load_components(dsums.D_E, here, cols, T)[None, :, :]
    b_dEE = tile.load_components(dsums.D_EE, here, cols, T)[None, :, :]
    b_dV += b_D[:, None, :] * (b_dE + 2.0 * b_dEE * b_E)
    return b_dV, b_D, b_R * b_dD


@triton.jit
def tile_bwd(
    args, models, dsums, dlogits, parts, grads, p_W, pid_g, pid_x, pid_b, start, n_inp, pid_i, cols, T: tl.constexpr
):  # fmt: skip
    """Add a tile's part, in all iterations, to the gradients of everything that votes and shares depend on."""
    rows = tile.load_input_tile(args, start, n_inp, pid_i, T)
    b_V = tile.compute_votes(args, rows, cols, T)
    b_ign = tile.load_beta(args.ign, rows, cols, args.j, T.IGN_K, T.IGN_J)
    b_dV = tl.zeros(b_V.shape, tl.float64 if T.FLOAT64_GRADS else tl.float32)
    b_df = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_duse = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    b_dign = tl.full([T.BLOCK_I, T.BLOCK_J], 0.0, tl.float32)
    for step in range(args.n_iters):
        t = args.n_iters - 1 - step
        if T.ONE_PROGRAM:
            model_bwd.models_bwd(args, SumSplit(1, 1, 1, 1), models, dsums, dlogits, grads, t, pid_b, 0, T)
            tl.debug_barrier()
        b_dV, b_D, b_RdD = iteration_bwd(args, models, dsums, dlogits, t, pid_b, rows, cols, b_V, b_dV, T)
        b_da = tile.load_outputs(dsums.a, tile.offset_model(args, t, pid_b), cols, 0.0)[None, :]
        b_df += b_RdD - b_da * b_ign
        b_duse += b_da * b_D
        b_dign += b_da * (b_D - rows.f[:, None])
        if T.ONE_PROGRAM:
            tl.debug_barrier()
    param_bwd.put_betas(args, parts, pid_g, rows, cols, b_duse, b_dign, T)
    param_bwd.put_f(args, grads, parts, pid_x, rows, tl.sum(b_df, 1), T)
    param_bwd.put_votes(args, grads, parts, p_W, pid_g, pid_x, rows, cols, b_dV, T)


@triton.jit
def unit_bwd(args, split, share, models, dsums, dlogits, parts, grads, unit, T: tl.constexpr):
    """Run the last pass over votes for a group of samples, a slot of inputs and a slice of outputs."""
    pid_x = unit % share.slices
    pid_s = unit // share.slices % share.slots
    pid_g = unit // share.slices // share.slots
    pid_w = pid_g if T.W_K else pid_g * share.slots + pid_s
    pid_w = pid_w if T.W_J else pid_w * share.slices + pid_x
    p_W = parts.W + pid_w * tl.cast(args.i if T.W_K else 1, tl.int64) * (args.j if T.W_J else 1) * (T.D * T.H)
    for pid_j in range(pid_x, split.j_tiles, share.slices):
        cols = tile.load_output_tile(args, pid_j, T)
        for pid_b in range(pid_g, args.b, share.groups):
            start, n_inp = sample_range(args.offsets, pid_b, args.i, T.PACKED)
            n_tiles = 1 if T.ONE_PROGRAM else tl.cdiv(n_inp, T.BLOCK_I)  # even of a sample without inputs
            for pid_i in range(pid_s, n_tiles, share.slots):
                tile_bwd(
                    args, models, dsums, dlogits, parts, grads, p_W, pid_g, pid_x, pid_b, start, n_inp, pid_i, cols, T
                )


@triton.jit(
    do_not_specialize=(
        "first", "last", "n", "b", "i", "j", "k", "n_iters", "i_tiles", "j_tiles", "slots", "slices", "groups",
        "x_slots", "x_slices", "w_slots",
    )
)  # fmt: skip
def votes_bwd_kernel(
    p_count, first, last, n, b, i, j, k, n_iters, i_tiles, j_tiles, slots, slices, groups, x_slots, x_slices, w_slots,
    route_args, models, dsums, dlogits, parts, grads, T: tl.constexpr,
):  # fmt: skip
    """Run phases: in each iteration but the first gradients of models, then sums over inputs; then all gradients."""
    args = tile.make_args(route_args, n, b, i, j, k, n_iters)
    split, share = SumSplit(i_tiles, j_tiles, slots, slices), GradSplit(groups, x_slots, x_slices, w_slots)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    STEPS: tl.constexpr = 4 if T.SPLIT_J else 2
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        end = phase + 1 if T.ONE_PROGRAM else phase - STEPS * (n_iters - 1)
        if not T.ONE_PROGRAM:
            t, step = tl.maximum(n_iters - 1 - phase // STEPS, 0), phase % STEPS
            if (step == 0) & (end <= 0):
                n_blocks = tl.cdiv(j, T.BLOCK_M)
                for unit in range(pid, b * n_blocks, n_pids):
                    pid_b, pid_m = unit // n_blocks, unit % n_blocks
                    model_bwd.models_bwd(args, split, models, dsums, dlogits, grads, t, pid_b, pid_m, T)
            if T.SPLIT_J:
                if (step == 1) & (end < 0):
                    for unit in range(pid, b * i_tiles * slices, n_pids):
                        pid_b, pid_i = unit // slices // i_tiles, unit // slices % i_tiles
                        model_bwd.sum_R_dD(args, split, models, dsums, dlogits, t, pid_b, pid_i, unit % slices, T)
                if (step == 2) & (end < 0):
                    model_bwd.merge_R_dD(args, split, dsums, dlogits, t, pid, n_pids)
            if (step == STEPS - 1) & (end < 0):
                for unit in range(pid, b * slots * j_tiles, n_pids):
                    pid_j, pid_s, pid_b = unit % j_tiles, unit // j_tiles % slots, unit // j_tiles // slots
                    model_bwd.sum_inputs_bwd(args, split, models, dsums, dlogits, t, pid_b, pid_s, pid_j, T)
        if end == 1:
            for unit in range(pid, groups * x_slots * x_slices, n_pids):
                unit_bwd(args, split, share, models, dsums, dlogits, parts, grads, unit, T)
        if end == 2:
            if T.SPLIT_J:
                param_bwd.reduce_inputs(args, share, parts, grads, pid, n_pids, T)
            param_bwd.reduce_params(args, share, dsums, parts, grads, pid, n_pids, T)
