"""Every form of the kernels on a GPU, also under its sanitizer, with memcheck, racecheck, synccheck or initcheck:

compute-sanitizer --tool memcheck python -m pytest tests/gpu/test_every_form.py
"""

import pytest
import torch

pytest.importorskip("triton")

from capsroute.routing.triton import selection
from capsroute.testing import draw_samples, make_targets, targets_over_budget
from forms import FORMS, MOMENT_FORMS, limits_for

FEW_INPUTS_FACTOR = 4
"""Budgets that moments of few inputs may be off by: pairs of float16 hold 22 bits, which only long sums average out."""


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("name", FORMS)
def test_form_within_budget(name: str, agreement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = make_targets(draw_samples(FORMS[name].at_most(2**20), "cuda"), torch.float32, agreement=agreement)
    if name in MOMENT_FORMS:
        monkeypatch.setattr(selection, "LIMITS", limits_for(name))
        targets = [t._replace(budget={k: FEW_INPUTS_FACTOR * may for k, may in t.budget.items()}) for t in targets]
    assert targets_over_budget(targets, "triton", torch.float32, agreement=agreement) == {}
