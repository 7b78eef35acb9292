"""The reference against the oracle, and its records against the paper's properties."""

import numpy as np
import pytest
import torch

import oracle
from capsroute.routing import trace
from capsroute.testing import Shape, make_inputs

DENSITIES = {"gaussian": oracle.gaussian, "kmeans": oracle.kmeans}
SIZES = [(fixed_inp, fixed_out) for fixed_inp in (True, False) for fixed_out in (True, False)]


@pytest.mark.parametrize("agreement", DENSITIES)
@pytest.mark.parametrize(("fixed_inp", "fixed_out"), SIZES)
def test_records_match_oracle(fixed_inp: bool, fixed_out: bool, agreement: str) -> None:
    shape = Shape(2, 7, 3, 2, 3, 2, fixed_inp, fixed_out)
    inputs = {name: t.detach() for name, t in make_inputs(shape, dtype=torch.float64).items()}
    inputs["a_inp"][0, 0], inputs["a_inp"][1, 1] = torch.inf, -torch.inf
    full = {
        "W": (shape.n_inp, shape.n_out, shape.d_inp, shape.d_out),
        "B": (shape.n_inp, shape.n_out, shape.d_cov, shape.d_out),
        "beta_use": (shape.n_inp, shape.n_out),
        "beta_ign": (shape.n_inp, shape.n_out),
    }
    params = [inputs[name].expand(size).numpy() for name, size in full.items()]
    steps = list(trace(**inputs, n_iters=3, agreement=agreement))
    for sample in range(shape.batch):
        a_inp, mu_inp = inputs["a_inp"][sample].numpy(), inputs["mu_inp"][sample].numpy()
        records = oracle.route(a_inp, mu_inp, *params, 3, 1e-5, DENSITIES[agreement])
        assert len(steps) == len(records) == 3
        for step, record in zip(steps, records, strict=True):
            for name, t in step._asdict().items():
                # both are float64 sums of a few dozen terms of size about one
                np.testing.assert_allclose(t[sample].numpy(), record[name], rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("agreement", DENSITIES)
def test_records_sum_to_input_data(agreement: str) -> None:
    inputs = make_inputs(Shape(3, 50, 7, 2, 3, 4))
    for step in trace(**inputs, n_iters=4, agreement=agreement):
        torch.testing.assert_close(step.R.sum(-1), torch.ones_like(inputs["a_inp"]))
        f = torch.sigmoid(inputs["a_inp"]).unsqueeze(-1)
        torch.testing.assert_close(step.D_use + step.D_ign, f.expand_as(step.D_use))
        assert ((step.D_use >= 0) & (step.D_use <= f)).all()


def test_one_iteration_by_hand() -> None:
    """Two inputs of weight one half and one, votes 1 and 4, two outputs that share them equally."""
    one, beta = torch.ones(1, 2, 1, 1), torch.tensor([[1.0, 2.0]])
    a_inp, mu_inp = torch.tensor([0.0, torch.inf]), torch.tensor([1.0, 4.0]).view(2, 1, 1)
    (step,) = trace(a_inp, mu_inp, one, torch.zeros(1, 2, 1, 1), beta, 3 * beta, n_iters=1, eps=1e-6)
    torch.testing.assert_close(step.D_use, torch.tensor([[0.25, 0.25], [0.5, 0.5]]))
    torch.testing.assert_close(step.a, torch.tensor([0.75 * 1 - 0.75 * 3, 0.75 * 2 - 0.75 * 6]))
    mean = (0.25 * 1 + 0.5 * 4) / 0.75
    square = (0.25 * (1 - mean) ** 2 + 0.5 * (4 - mean) ** 2) / 0.75
    torch.testing.assert_close(step.mu.flatten(), torch.full((2,), mean), rtol=1e-5, atol=0)
    torch.testing.assert_close(step.sig2.flatten(), torch.full((2,), square), rtol=1e-5, atol=0)
